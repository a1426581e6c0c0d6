/*
 * Overflow, for service ports with near endpoints: all serving endpoints, and the load from which
 * new connections use them. Entries follow from `backends`; the entries of a generation never
 * change.
 */
#pragma once

#include "lib/map.h"

enum { SPILL_COMPARED = 64 }; /* so many backends at most have their loads added up */

struct spill_key {
	__u32 service;
	__u32 generation;
};

/* A connection spills over where the sum of the near loads * near_factor > far * far_factor. */
struct spill {
	__u32 first; /* of all that serve; as in struct policy */
	__u32 size;
	__u32 table;
	__u32 near_first; /* of the near ones */
	__u32 near_size;
	__u32 far_trials; /* backends on trial only where a connection spills over: the last ones */
	__u32 overload;	  /* in thousandths, for people: the factors follow from it */
	__u32 inactive;	  /* 1: inactive connections count, too */
	__u32 compared;	  /* so many of `counters`, */
	__u32 near;	  /* the first ones of them are near */
	__u32 near_factor;
	__u32 far_factor;
	__u32 counters[SPILL_COMPARED];
};

MAP("hash", struct spill_key, struct spill, spills, MAX_SCHEDULE_CHUNKS, BPF_F_NO_PREALLOC);
