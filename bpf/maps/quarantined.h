/*
 * Backends that the agent keeps new connections from, or gives a trial, by the index into
 * backend_counters. It is for people: no program reads it.
 */
#pragma once

#include "lib/map.h"

enum quarantine {
	QUARANTINE_AWAY = 1,
	QUARANTINE_TRIAL, /* the next connection decides */
};

struct quarantine_entry {
	__u64 until; /* ns, CLOCK_MONOTONIC; 0 for a trial */
	__u64 state; /* of enum quarantine */
};

MAP("hash", __u32, struct quarantine_entry, quarantined, 4096, BPF_F_NO_PREALLOC);
