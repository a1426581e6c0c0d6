/*
 * Counted events, one field each: name of the metric, and after a double underscore the reason.
 * Each CPU counts for itself, so a plain increment is enough.
 */
#pragma once

#include "lib/map.h"
#include "lib/verifier.h"

#define ENOMEM 12 /* negative, what an insertion returns if there is no memory */

/* What the choice of a backend refuses: for the node, and for each service port (refusals.h). */
#define REFUSAL_COUNTERS               \
	__u64 rejected__no_endpoints;  \
	__u64 rejected__backends_full; \
	__u64 dropped__no_endpoints;   \
	__u64 dropped__source_range;

struct counters {
	REFUSAL_COUNTERS
	__u64 rejected__unknown_connection;
	__u64 dropped__masquerade_ports_exhausted;
	__u64 dropped__no_masquerade_address;
	__u64 dropped__source_ports_exhausted;
	__u64 dropped__connections_full;
	__u64 dropped__no_memory; /* the kernel had none for an entry of a connection */
	__u64 dropped__evicted;
	__u64 dropped__rewrite_failed;
	__u64 dropped__step_missing;
	__u64 dropped__reject_failed;
	__u64 dropped__icmp_limited; /* refused, but after too many ICMP errors */
	__u64 dropped__unknown_connection;
	__u64 dropped__redirects;
	__u64 source_ports_changed;
	__u64 connections_reopened;
	__u64 connections_moved; /* opened anew: their backend is in quarantine */
	__u64 connections_raced; /* two first packets at once; one of them used the other's entry */
	__u64 direct_flows_noticed;
	__u64 icmp_errors_translated;
	__u64 echo_requests_answered;
	__u64 fast_forwarded; /* packets that took the fast path */
	__u64 edge_forwarded;
	__u64 edge_passed__turn;
	__u64 edge_passed__not_now;
	__u64 edge_passed__not_by_uplink;
	__u64 events_lost; /* the ring of events was full */
};

MAP("percpu_array", __u32, struct counters, counters, 1, 0);

static inline struct counters *counters_get(void)
{
	__u32 only = 0;

	return counters.lookup(&only);
}

#define COUNT(field)                                       \
	do {                                               \
		struct counters *counted = counters_get(); \
		if (counted)                               \
			counted->field++;                  \
	} while (0)

/* Count a packet that is dropped because an entry of a connection could not be inserted. */
static inline void count_no_room(int error)
{
	struct counters *counted = counters_get();
	__u32 full = not_zero(error + ENOMEM);

	if (!counted)
		return;
	counted->dropped__connections_full += full;
	counted->dropped__no_memory += 1 - full;
}
