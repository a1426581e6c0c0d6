/*
 * Backends that the agent keeps new connections from, or gives a trial, by the index into
 * backend_counters. On trial a backend gets one connection at a time: who writes `tried` first has
 * it; without atomics two connections at a time may. The agent writes an entry anew only when its
 * state changes.
 */
#pragma once

#include "lib/atomic.h"
#include "lib/map.h"
#include "maps/settings.h"

enum quarantine {
	QUARANTINE_AWAY = 1,
	QUARANTINE_TRIAL, /* the next connection decides */
};

struct quarantine_entry {
	__u64 until; /* ns, CLOCK_MONOTONIC; 0 for a trial */
	__u64 state; /* of enum quarantine */
	__u64 tried; /* the same, when the connection was chosen that tries it; 0: there is none */
};

MAP("hash", __u32, struct quarantine_entry, quarantined, 4096, BPF_F_NO_PREALLOC);

/*
 * If the end of an attempt is not seen for so long, another connection may try. An endpoint that
 * is silent is found out by then, also where the agent is late.
 */
enum { TRIAL_SECONDS = 5 };

static inline bool is_quarantined(__u32 backend)
{
	return quarantined.lookup(&backend);
}

/* Have a connection try a backend. False if another one does, or if it is not on trial. */
static inline bool trial_claim(__u32 backend)
{
	struct quarantine_entry *known = quarantined.lookup(&backend);
	__u64 now = bpf_ktime_get_coarse_ns(), tried;

	if (!known || known->state != QUARANTINE_TRIAL)
		return false;
	tried = known->tried;
	if (tried && (__s64)(now - tried) < (__s64)(TRIAL_SECONDS * NS_PER_SECOND))
		return false;
	return atomic_compare_and_swap(&known->tried, tried, now) == tried;
}

/*
 * Let another connection try a backend: this one, which was chosen at `chosen` or before, does no
 * more. If another one has it since, as this one took too long, that one keeps it.
 */
static inline void trial_release(__u32 backend, __u64 chosen)
{
	struct quarantine_entry *known = quarantined.lookup(&backend);
	__u64 tried;

	if (!known)
		return;
	tried = known->tried;
	if (tried <= chosen)
		atomic_compare_and_swap(&known->tried, tried, 0);
}
