/*
 * What a connected socket of the node counts for, and what a TCP socket is about to be connected
 * to. It is in the storage of the socket itself, so that the hook of its end can take it back.
 */
#pragma once

#include "lib/map.h"
#include "maps/backend_loads.h"
#include "maps/quarantined.h"
#include "maps/settings.h"

struct socket_load {
	__u32 counters; /* of the backend; 0: it counts for none */
	__u32 datagram; /* UDP */
	/* The backend of an attempt to connect, if its result is recorded; else 0. */
	__u32 attempt;
	__u32 trial; /* that attempt is a trial of the backend: the second when it began; else 0 */
};

SOCKET_STORAGE(struct socket_load, socket_loads);

static inline void socket_load_add(const struct socket_load *counted, __s32 sockets)
{
	__u32 backend = counted->counters;
	struct backend_load *load = backend_loads.lookup(&backend);
	__u64 number = counted->datagram ? load_of(0, sockets) : load_of(sockets, 0);

	if (!load)
		return;
	__sync_fetch_and_add(&load->connections, number);
	__sync_fetch_and_add(&load->sockets, number);
}

static inline __u32 second_now(void)
{
	return bpf_ktime_get_coarse_ns() / NS_PER_SECOND;
}

/* Let another connection try the backend, if this attempt is its trial. */
static inline void socket_trial_release(const struct socket_load *attempt)
{
	if (attempt->trial)
		trial_release(attempt->attempt, (attempt->trial + 1ULL) * NS_PER_SECOND);
}

/* An attempt to connect has ended, or it is not known any more how it does. */
static inline void socket_attempt_forget(struct socket_load *attempt)
{
	attempt->attempt = attempt->trial = 0;
}

/*
 * Take back what a socket counts for. A process that ends it while it connects has given up, which
 * says nothing about the backend.
 */
static inline void socket_load_end(struct socket_load *counted)
{
	socket_trial_release(counted);
	socket_attempt_forget(counted);
	if (!counted->counters)
		return;
	socket_load_add(counted, -1);
	counted->counters = 0;
}

/* Have a socket count for a backend, and for no other. */
static inline void socket_load_begin(struct socket_load *counted, __u32 backend, bool datagram)
{
	socket_load_end(counted);
	counted->counters = backend;
	counted->datagram = datagram;
	socket_load_add(counted, 1);
}
