/*
 * Loads: how many connections each backend has now, as ip_vs counts them. Connections are counted
 * for Services whose schedule compares loads, or with an annotation that needs the numbers (`counted`
 * in frontends.h). Entry 0 is unused.
 *
 * All CPUs add to one number. Each connection and each socket says itself whether it is counted
 * (connections.h, socket_loads.h), so it is added once and subtracted once. If the kernel evicts an
 * entry, the agent corrects the number (path/agent/recount.h).
 */
#pragma once

#include "lib/map.h"

/*
 * Active and inactive ones are the halves of one number, active + inactive * 2^32: one addition
 * moves a connection from the one to the other.
 */
struct backend_load {
	__u64 connections; /* connections of sockets are counted in both */
	__u64 sockets;	   /* of the node, which no packet counts: TCP is active, UDP inactive */
};

MAP("array", __u32, struct backend_load, backend_loads, (MAX_BACKENDS + 1), 0);

static inline __u64 load_of(__s32 active, __s32 inactive)
{
	return (__s64)active + (__s64)inactive * (1LL << 32);
}

/* Add connections to the load of a backend. */
static inline void load_add(__u32 backend, __s32 active, __s32 inactive)
{
	struct backend_load *load = backend_loads.lookup(&backend);

	if (load)
		__sync_fetch_and_add(&load->connections, load_of(active, inactive));
}

/*
 * The halves. Either may be below 0 for a moment, while two CPUs add and take back: that is less
 * than none, and never mistaken for many.
 */
static inline __s64 load_active(__u64 load)
{
	return (__s64)(load << 32) >> 32;
}

static inline __s64 load_inactive(__u64 load)
{
	return (__s64)(load + (1ULL << 31)) >> 32;
}
