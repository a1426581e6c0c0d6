/*
 * Fast flows: flows between pods that are not translated and take the fast path. Netfilter may
 * translate flows that these programs do not translate: a pod asks another pod by a port of the
 * node (hostPort), and the answers look like any other packets between the two. So a flow is fast
 * only if this node has seen it begin between the pods' own addresses. It begins with a SYN, with a
 * datagram from no endpoint to an endpoint, or with datagrams both ways. (If both ends are
 * endpoints, either may have asked: members of a cluster all use the same port.) If two flows have
 * one index, the later flow keeps the entry and the other one takes the stack.
 *
 * A fast flow needs its port, as a direct flow does (maps/direct_flows.h). Only this map remembers
 * it: when it began, and which ends have ended it.
 *
 * A flow in this map was not translated. A connection that would be routed with the same 5-tuple
 * gets another source port (conn_new_direct()), and a connection that takes over the 5-tuple of an
 * older flow removes the flow (fast_flow_remove()). So most packets need no other lookup.
 *
 * Where packets are fast only after the handshake, the same entries count what netfilter lets pass,
 * to find flows with enough packets (maps/established_flows.h).
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/map.h"
#include "lib/wire.h"
#include "maps/direct_flows.h"
#include "maps/settings.h"

/* A UDP flow that was silent for so long has to begin again: conntrack forgets it, too. */
#define FAST_UDP_SECONDS 30

#define FAST_END_SHIFT 4

enum fast_flow_state {
	FAST_FROM_FIRST = 1, /* seen from one of both ends */
	FAST_FROM_SECOND = 2,
	FAST_BOTH = 3,	/* so the flow is fast */
	FAST_ENDED = 4, /* a FIN or RST was seen; what follows it is fast, too */
	FAST_ENDED_BY_BOTH = FAST_BOTH << FAST_END_SHIFT, /* bits of those that have ended it */
	/* It is not fast, but it is known not to be translated, so no connection is looked for. */
	FAST_NOT_TRANSLATED = 8,
	FAST_ANSWERED = 0x40, /* a SYN with ACK was seen */
};

/*
 * A SYN that comes again within so many seconds belongs to the same attempt. If there was no answer
 * to the first, the stack serves the rest: answers may come by a port of a bridge that has no
 * programs yet, and netfilter drops them where it has not seen the SYN.
 */
#define FAST_ATTEMPT_SECONDS 60

struct fast_flow {
	__u32 fingerprint;
	__u16 second; /* of its last datagram, its SYN, or its end: the lower bits */
	__u8 state;   /* bits of enum fast_flow_state */
	__u8 passed;  /* packets after netfilter, and in the upper bits from which ends */
};

/* A flow may be worth the fast path when so many of its packets, of both ends, have passed. */
#define FAST_ENOUGH_PACKETS 8
#define FAST_PASSED_SHIFT 6

MAP("array", __u32, struct fast_flow, fast_flows, MAX_DIRECT_FLOWS, 0);

/*
 * Return the entry of a flow and compute the flow's fingerprint. The answers of the flow have the
 * same entry. `from`: which of both ends has sent the packet.
 */
static inline struct fast_flow *fast_flow_place(const struct flow *flow, __u32 *fingerprint,
						__u8 *from)
{
	__u64 source = end_hash(&flow->source), destination = end_hash(&flow->destination);
	__u32 index = flow_index(flow, source, destination);

	source += flow->source_port;
	destination += flow->destination_port;
	source *= 0xff51afd7ed558ccdULL;
	destination *= 0xff51afd7ed558ccdULL;
	*fingerprint = (__u32)((source ^ source >> 32) + (destination ^ destination >> 32)) | 1;
	*from = source > destination ? FAST_FROM_FIRST : FAST_FROM_SECOND;
	return fast_flows.lookup(&index);
}

/*
 * Return the entry of a flow, in either direction, or NULL. `from` becomes the end that has sent.
 */
static inline struct fast_flow *fast_flow_find_from(const struct flow *flow, __u8 *from)
{
	__u32 fingerprint;
	struct fast_flow *entry = fast_flow_place(flow, &fingerprint, from);

	return entry && entry->fingerprint == fingerprint ? entry : NULL;
}

static inline struct fast_flow *fast_flow_find(const struct flow *flow)
{
	__u8 from;

	return fast_flow_find_from(flow, &from);
}

/* Note a packet with FIN or RST. */
static inline void fast_flow_end(struct fast_flow *entry, __u8 from, __u8 tcp_flags)
{
	entry->state |= FAST_ENDED |
			(tcp_flags & TCP_RST ? FAST_ENDED_BY_BOTH : from << FAST_END_SHIFT);
	entry->second = direct_flow_now();
}

/*
 * True if a packet of TCP, which opens none, is of a flow that is known to be fast. A flow that has
 * ended stays so for what follows its end.
 */
static inline bool fast_flow_goes_on(const struct flow *flow, __u8 tcp_flags)
{
	__u8 from;
	struct fast_flow *entry = fast_flow_find_from(flow, &from);

	if (!entry || !(entry->state & FAST_BOTH))
		return false;
	if (tcp_flags & TCP_SYN) {
		/*
		 * The answer to a SYN that did not come this way, with the ports of an older flow?
		 */
		if (entry->state & FAST_ENDED)
			return false;
		entry->state |= FAST_ANSWERED;
	}
	if (tcp_ends(tcp_flags))
		fast_flow_end(entry, from, tcp_flags);
	return true;
}

/* True if the flow in a place is fast, or was until it ended. */
static inline bool fast_flow_is_fast(const struct fast_flow *entry)
{
	return (entry->state & FAST_BOTH) == FAST_BOTH;
}

/* True if a flow is fast; `flow` may be of either direction. */
static inline bool fast_flow_known(const struct flow *flow)
{
	const struct fast_flow *entry = fast_flow_find(flow);

	return entry && fast_flow_is_fast(entry);
}

/*
 * The same as direct_flow_exists() for `routed`: a fast flow is remembered here, and in
 * `direct_flows` only if the stack serves it.
 */
static inline bool fast_flow_exists(const struct settings *settings, const struct flow *routed,
				    bool urgent)
{
	const struct fast_flow *entry = fast_flow_find(routed);
	__u8 ended_by;

	if (!entry || !fast_flow_is_fast(entry))
		return false;
	ended_by = entry->state & FAST_ENDED_BY_BOTH;
	/* An older build did not write who has ended a flow, nor when. */
	if (entry->state & FAST_ENDED && !ended_by)
		return false;
	return direct_flow_holds(settings, routed->protocol, entry->second,
				 ended_by == FAST_ENDED_BY_BOTH, urgent);
}

/* A flow is translated from now on, so it is none of these. */
static inline void fast_flow_remove(const struct flow *flow)
{
	struct fast_flow *entry = fast_flow_find(flow);

	if (entry)
		entry->state = 0;
}

/*
 * True if a SYN at `now` is one of a fast flow again, without an answer before, or again one of a
 * flow that was left to the stack so.
 */
static inline bool fast_flow_is_unanswered(const struct fast_flow *entry, __u16 now)
{
	__u16 since = now - entry->second;

	return since && since <= FAST_ATTEMPT_SECONDS &&
	       (entry->state == FAST_BOTH || entry->state == FAST_NOT_TRANSLATED);
}

/*
 * True if the flow of this fingerprint was the last in its place, and fast. Then no connection that
 * is translated has taken its 5-tuple since, or it would have removed it.
 */
static inline bool fast_flow_was(const struct fast_flow *entry, __u32 fingerprint)
{
	return entry->fingerprint == fingerprint && fast_flow_is_fast(entry);
}

/* Note that a TCP flow between pods begins, in its place. True if it is fast. */
static inline bool fast_flow_begin_at(const struct settings *settings, struct fast_flow *entry,
				      __u32 fingerprint)
{
	__u16 now = direct_flow_now();

	if (entry->fingerprint == fingerprint && fast_flow_is_unanswered(entry, now)) {
		entry->state = FAST_NOT_TRANSLATED;
		return false;
	}
	entry->fingerprint = fingerprint;
	entry->second = now;
	entry->state = fast_path_guarded(settings) ? FAST_BOTH : 0;
	return entry->state;
}

static inline bool fast_flow_begin(const struct settings *settings, const struct flow *flow)
{
	__u32 fingerprint;
	__u8 from;
	struct fast_flow *entry = fast_flow_place(flow, &fingerprint, &from);

	return entry && fast_flow_begin_at(settings, entry, fingerprint);
}

/*
 * Forget a flow that has ended: the packet with its ports, of a flow that is not fast, answers a
 * SYN that did not come this way.
 */
static inline void fast_flow_forget_ended(const struct flow *flow)
{
	struct fast_flow *entry = fast_flow_find(flow);

	if (entry && entry->state & FAST_ENDED)
		entry->state = 0;
}

/* Note that a TCP flow between pods begins, by the stack, and is not translated. */
static inline void fast_flow_note_untranslated(const struct flow *flow)
{
	__u32 fingerprint;
	__u8 from;
	struct fast_flow *entry = fast_flow_place(flow, &fingerprint, &from);

	if (!entry)
		return;
	entry->fingerprint = fingerprint;
	entry->state = FAST_NOT_TRANSLATED;
	entry->passed = 0;
}

/* True if a flow, of either direction, is known not to be translated. */
static inline bool fast_flow_is_untranslated(const struct flow *flow)
{
	const struct fast_flow *entry = fast_flow_find(flow);

	return entry && entry->state & FAST_NOT_TRANSLATED;
}

/* True if a datagram is fast. `to_server`: it goes to an endpoint, so it is no answer. */
static inline bool fast_flow_udp(const struct settings *settings, const struct flow *flow,
				 bool to_server)
{
	__u16 now = direct_flow_now();
	__u32 fingerprint;
	__u8 from;
	struct fast_flow *entry = fast_flow_place(flow, &fingerprint, &from);

	if (!entry)
		return false;
	if (entry->fingerprint != fingerprint || (__u16)(now - entry->second) > FAST_UDP_SECONDS) {
		entry->fingerprint = fingerprint;
		entry->state = 0;
	}
	if (entry->second != now)
		entry->second = now;
	if (entry->state != FAST_BOTH && fast_path_guarded(settings))
		entry->state |= to_server ? FAST_BOTH : from;
	return entry->state == FAST_BOTH;
}

/* Count a packet that netfilter has let pass. True each time that there are enough of them. */
static inline bool fast_flow_passed(const struct flow *flow)
{
	__u32 fingerprint;
	__u8 from;
	struct fast_flow *entry = fast_flow_place(flow, &fingerprint, &from);
	__u8 passed;

	if (!entry)
		return false;
	if (entry->fingerprint != fingerprint) {
		entry->fingerprint = fingerprint;
		entry->state = 0;
		entry->passed = 0;
	}
	passed = (entry->passed | from << FAST_PASSED_SHIFT) + 1;
	if ((passed & ((1 << FAST_PASSED_SHIFT) - 1)) < FAST_ENOUGH_PACKETS) {
		entry->passed = passed;
		return false;
	}
	entry->passed = 0;
	return passed >> FAST_PASSED_SHIFT == FAST_BOTH;
}
