/*
 * Ways to keep the kernel's verifier from following one path as many. The verifier knows some
 * values in registers and on the stack. It follows each combination of them through all code that
 * comes after, until nothing reads these values any more. It knows no values in maps.
 */
#pragma once

/*
 * All later reads are from memory. A register would still tell the verifier by which path its value
 * was calculated. For values in maps.
 */
#define AS_IN_MEMORY() asm volatile("" ::: "memory")

/*
 * Return 1 if `number` is not 0, else 0; without a branch. The compiler must not see what this is:
 * it would make a branch.
 */
static inline __u32 not_zero(__u32 number)
{
	number |= -number;
	asm("" : "+r"(number));
	return number >> 31;
}
