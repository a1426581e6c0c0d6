/* How many pairs of entries of a map are of some kind: a number that all CPUs change. */
#pragma once

/* Count one more pair. False if there are `most` already. */
static inline bool pair_count_take(__s64 *pairs, __u32 most)
{
	if (!pairs || *pairs >= (__s64)most)
		return false;
	__sync_fetch_and_add(pairs, 1);
	return true;
}

/* Count as many pairs less, 1 or 0. Nothing is written for 0: all CPUs share the number. */
static inline void pair_count_release(__s64 *pairs, __s64 number)
{
	if (pairs && number)
		__sync_fetch_and_add(pairs, -number);
}
