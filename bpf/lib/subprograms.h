/*
 * Subprograms: functions that the verifier follows once for a program, and not on each path that
 * calls them. The caller learns nothing but the number that is returned, and forgets nothing that
 * it knows.
 *
 * A program calls a number of `enum subprogram`. The code of SUBPROGRAM_X is compiled from the
 * function `subprogram_x`, and bpfsvc puts it behind each program that calls it. A subprogram gets
 * one pointer to ARGUMENT_X bytes, and the kernel lets the pointer be NULL. Program and subprogram
 * have 512 bytes of stack together. Programs that jump to steps call no subprogram: not every kind
 * of machine can do both in one program.
 */
#pragma once

/* No helper of the kernel has such a number. */
enum subprogram {
	SUBPROGRAM_CHOOSE = 0x7000,
	SUBPROGRAM_SPILL,
	SUBPROGRAM_COLLECT,
	SUBPROGRAM_OBSERVE,
	SUBPROGRAM_COLLECT_CLOSED,
	SUBPROGRAM_TELL_CONNECTION,
	SUBPROGRAM_TELL_FRONTEND,
	SUBPROGRAM_TELL_SOCKET,
};
