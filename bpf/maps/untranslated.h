/*
 * Untranslated connections: the number of pairs in `connections` that change nothing, and only tell
 * that a connection from outside takes the fast path (path/first/direct.h). Anybody who reaches
 * a pod can have them made, so they may take but a part of the map. Those beyond that take the
 * stack. The agent counts them again now and then, as it does with half_open.
 */
#pragma once

#include "lib/map.h"
#include "lib/pair_count.h"
#include "maps/half_open.h"

MAP("array", __u32, __s64, untranslated, 1, 0);

#define UNTRANSLATED_PART 16 /* pairs, so two of as many entries */

static inline __s64 *untranslated_get(void)
{
	__u32 only = 0;

	return untranslated.lookup(&only);
}

static inline void untranslated_release(void)
{
	pair_count_release(untranslated_get(), 1);
}

/*
 * Count one more pair, which is half open. False if there is no room for it: of that for half-open
 * ones it takes no more than half, so that connections of Services are served as without these.
 */
static inline bool untranslated_take(void)
{
	__s64 *half_open_pairs = half_open_get();

	if (!pair_count_take(untranslated_get(),
			     LOADED_NUMBER(MAX_CONNECTIONS) / UNTRANSLATED_PART))
		return false;
	if (pair_count_take(half_open_pairs, LOADED_NUMBER(MAX_CONNECTIONS) / HALF_OPEN_PART / 2))
		return true;
	untranslated_release();
	return false;
}
