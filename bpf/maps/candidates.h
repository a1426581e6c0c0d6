/*
 * Candidates: where loads are counted, the backends of a policy in the order of its slots. One
 * lookup gives as many as a schedule compares. They follow from `backends`; the entries of a
 * generation never change.
 */
#pragma once

#include "lib/map.h"
#include "maps/schedule_tables.h"

enum { CANDIDATES = 64 }; /* in one entry; of more backends, two at random are compared */

struct candidate {
	__u32 counters; /* of the backend */
	__u32 weight;	/* 0: there is none, nor behind it */
};

struct candidates_chunk {
	struct candidate rows[CANDIDATES];
};

MAP("hash", struct schedule_key, struct candidates_chunk, candidates, MAX_SCHEDULE_CHUNKS,
    BPF_F_NO_PREALLOC);
