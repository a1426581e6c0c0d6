/*
 * Subprograms: functions that the verifier follows once for a program, and not on each of its
 * paths. The caller learns nothing of what was done but a number, and loses nothing that it knows.
 *
 * A program calls a number of `enum subprogram`. The code of SUBPROGRAM_X is compiled from the
 * function `subprogram_x`, which bpfsvc puts behind each program that calls it. It is handed one
 * pointer to ARGUMENT_X bytes, which the kernel lets be NULL. Both have 512 bytes of stack together.
 * Programs that jump to steps call none: not every kind of machine can do both in one program.
 */
#pragma once

/* No helper of the kernel has such a number. */
enum subprogram {
	SUBPROGRAM_CHOOSE = 0x7000,
	SUBPROGRAM_SPILL,
	SUBPROGRAM_COLLECT,
};
