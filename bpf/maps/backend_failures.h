/*
 * Connections that failed before they were established, by the backend that was chosen, for every
 * Service. The programs make the entry with the first failure; the agent deletes it when the backend
 * is gone, and when another one gets the index.
 */
#pragma once

#include "lib/map.h"

struct backend_failures {
	__u64 refused;	   /* by a reset of the backend */
	__u64 unanswered;  /* the client had to send its SYN again, or was never answered */
	__u64 unreachable; /* an ICMP error has said so */
};

enum failure {
	FAILURE_REFUSED,
	FAILURE_UNANSWERED,
	FAILURE_UNREACHABLE,
};

/* By the index into backend_counters. A failure that finds no room is not counted. */
MAP("percpu_hash", __u32, struct backend_failures, backend_failures, MAX_BACKENDS,
    BPF_F_NO_PREALLOC);

/* Count a failed connection; index 0 is no backend. */
static inline void count_failure(__u32 backend, enum failure kind)
{
	struct backend_failures *entry, none = {};

	if (!backend)
		return;
	entry = backend_failures.lookup_or_try_init(&backend, &none);
	if (!entry)
		return;
	entry->refused += kind == FAILURE_REFUSED;
	entry->unanswered += kind == FAILURE_UNANSWERED;
	entry->unreachable += kind == FAILURE_UNREACHABLE;
}
