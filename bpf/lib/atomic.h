/*
 * Atomic operations that return the value as it was. Linux before 5.12 has none of them. There,
 * LOADED_ATOMICS is 0, and two CPUs that change a value at the same time may both read the same
 * old one: each caller says what that means.
 */
#pragma once

#include "lib/map.h"

/* Add to a number. Without atomics nothing that is added gets lost; the result may be too high. */
static inline __u64 atomic_fetch_and_add(__u64 *number, __u64 more)
{
	if (LOADED_NUMBER(ATOMICS))
		return __sync_fetch_and_add(number, more);
	__sync_fetch_and_add(number, more);
	return *number - more;
}

/* Write `value` if the number is `expected`. Return the number as it was. */
static inline __u64 atomic_compare_and_swap(__u64 *number, __u64 expected, __u64 value)
{
	__u64 old;

	if (LOADED_NUMBER(ATOMICS))
		return __sync_val_compare_and_swap(number, expected, value);
	old = *number;
	if (old == expected)
		*number = value;
	return old;
}
