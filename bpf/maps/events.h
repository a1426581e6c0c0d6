/*
 * Events: what becomes of connections of Services, for `bpfsvc observe`. A program emits an event
 * only of a kind that the agent has asked for, which it does while somebody reads. The agent may
 * also ask for a sample: one of so many.
 *
 * The time that a backend took to answer needs an exact clock. The clock that connections are dated
 * by is as coarse as the kernel's tick. So a connection that is observed has the rest of its time in
 * a field of its own, and that field says that the connection is observed.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"
#include "maps/counters.h"

enum {
	EVENT_BYTES = 1 << 19,	   /* of the ring; a power of two, and of pages of any size */
	EVENT_NO_WAKEUP = 1,	   /* BPF_RB_NO_WAKEUP: the agent looks several times a second */
	EVENT_TIME_UNIT_SHIFT = 10 /* the rest of a time is in units of 1024 ns */
};

enum event_kind {
	EVENT_MADE = 1, /* a connection has got a backend */
	EVENT_ANSWERED, /* the first packet of its backend */
	EVENT_REPEATED, /* its client sends its SYN again: no answer has come */
	EVENT_REFUSED,	/* the client is told so */
	EVENT_DROPPED,	/* the client is not told; this follows EVENT_REFUSED */
	EVENT_ENDED,	/* its entries are removed */
	/* Another part of this node has dropped a packet: netfilter, the routes, a full buffer. */
	EVENT_DROPPED_ELSEWHERE,
	EVENT_KINDS, /* this number is their count, plus one */
};

enum event_reason {
	EVENT_REASON_NONE,
	EVENT_REASON_NO_ENDPOINTS,
	EVENT_REASON_BACKENDS_FULL,
	EVENT_REASON_SOURCE_RANGE,
	EVENT_REASON_BACKEND_RESET, /* a reset of the backend: its answer, or the end */
	EVENT_REASON_SOURCE_PORTS_EXHAUSTED,
	EVENT_REASON_CONNECTIONS_FULL,
	EVENT_REASON_MASQUERADE, /* there is no address or port to masquerade to */
	/* of an end */
	EVENT_REASON_CLOSED,
	EVENT_REASON_CLIENT_RESET,
	EVENT_REASON_UNANSWERED,
	EVENT_REASON_IDLE,
	EVENT_REASON_REMOVED, /* because its endpoint has left, or its Service */
	EVENT_REASON_GIVEN_UP, /* the client's socket has got no answer any more, or was disconnected */
	EVENT_REASONS,
};

/* What carries the connection. */
enum event_path {
	EVENT_BY_TC = 1,
	EVENT_BY_FAST_PATH, /* this follows EVENT_BY_TC */
	EVENT_BY_SOCKET,    /* the call of a socket was translated */
	EVENT_PATHS,
};

/* Addresses and ports are 0 where they are not known. */
struct event {
	__u64 time;    /* ns, CLOCK_MONOTONIC */
	__u64 took_us; /* since the client's first packet */
	struct address client;
	struct address frontend;
	struct address backend;
	__be16 client_port;
	__be16 frontend_port;
	__be16 backend_port;
	__u8 protocol;
	__u8 kind; /* of enum event_kind */
	__u32 service;
	/* Of the backend, as in backend_counters; of EVENT_DROPPED_ELSEWHERE the kernel's reason. */
	__u32 counters;
	__u32 sample; /* it stands for so many */
	__u8 reason;  /* of enum event_reason */
	__u8 path;    /* of enum event_path */
	__u8 masquerade;
	__u8 zero;
};

DESCRIBE(event);

/* What the agent asks for. */
struct observed {
	__u32 kinds;	   /* a bit for each kind: 1 << kind */
	__u32 connections; /* a mask: connections are observed whose random number has none of it */
	__u32 failures;	   /* the same for what is refused or dropped */
	__u32 zero;
};

RING(events, EVENT_BYTES);
MAP("array", __u32, struct observed, observed, 1, 0);

static inline struct observed *observed_get(void)
{
	__u32 only = 0;

	return observed.lookup(&only);
}

/*
 * Return what the agent asks for, if it asks for this kind; NULL if it does not. (Without the
 * barrier, the compiler calculates with the pointer, which the verifier refuses.)
 */
static inline struct observed *observed_if(__u8 kind)
{
	struct observed *wanted = observed_get();
	__u32 asked;

	if (!wanted)
		return NULL;
	asked = wanted->kinds >> kind & 1;
	asm volatile("" : "+r"(asked));
	return asked ? wanted : NULL;
}

/* Return an event to be filled in and given to event_emit(). NULL if there is no room. */
static inline struct event *event_begin(__u8 kind, __u32 mask)
{
	struct event *event = events.ringbuf_reserve(sizeof(struct event));

	if (!event) {
		COUNT(events_lost);
		return NULL;
	}
	event->time = bpf_ktime_get_ns();
	event->kind = kind;
	event->sample = mask + 1;
	event->took_us = 0;
	event->zero = 0;
	return event;
}

static inline void event_emit(struct event *event)
{
	events.ringbuf_submit(event, EVENT_NO_WAKEUP);
}

static inline void event_address_clear(struct address *address)
{
	__builtin_memset(address, 0, sizeof(*address));
}
