/*
 * What keeps the kernel's verifier from following one path as many. It follows each combination of
 * values that it knows, in registers and on the stack, through all that comes after, until nothing
 * reads them any more. It knows no values in maps.
 */
#pragma once

/*
 * What is read after this is read from memory: a register would still say by which path it was
 * calculated. For values in maps.
 */
#define AS_IN_MEMORY() asm volatile("" ::: "memory")

/* != 0, without a branch, which the compiler makes of what it understands. */
static inline __u32 not_zero(__u32 number)
{
	number |= -number;
	asm("" : "+r"(number));
	return number >> 31;
}
