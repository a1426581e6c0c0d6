/*
 * Outcomes: how attempts to open TCP connections to backends have ended since the agent took them
 * last, which it does every second. Those of Services that ask for it are noted, and no others.
 */
#pragma once

#include "lib/map.h"

struct backend_outcome {
	__u64 failures;	 /* refused, or the client had to send its SYN again */
	__u64 successes; /* established */
};

/* By the index into backend_counters. What finds no room is not noted. */
MAP("hash", __u32, struct backend_outcome, backend_outcomes, 4096, BPF_F_NO_PREALLOC);

/* Note ends of attempts. */
static inline void outcome_note(__u32 backend, __u32 failures, __u32 successes)
{
	struct backend_outcome *known, none = {};

	backend_outcomes.insert(&backend, &none); /* unless there is one */
	known = backend_outcomes.lookup(&backend);
	if (!known)
		return;
	__sync_fetch_and_add(&known->failures, failures);
	__sync_fetch_and_add(&known->successes, successes);
}
