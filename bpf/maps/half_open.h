/*
 * Half-open connections: the number of pairs in `connections` that are not established. The agent
 * counts them again now and then, because two packets at once may count one pair twice.
 */
#pragma once

#include "lib/map.h"
#include "lib/pair_count.h"

MAP("array", __u32, __s64, half_open, 1, 0);

#define HALF_OPEN_PART 32

static inline __s64 *half_open_get(void)
{
	__u32 only = 0;

	return half_open.lookup(&only);
}

/* Count one more pair. False if a part of the entries of `connections` is taken by such pairs. */
static inline bool half_open_take(void)
{
	return pair_count_take(half_open_get(), LOADED_NUMBER(MAX_CONNECTIONS) / HALF_OPEN_PART);
}

static inline void half_open_release(void)
{
	pair_count_release(half_open_get(), 1);
}
