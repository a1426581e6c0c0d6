/*
 * What the program at the tracepoint of dropped packets must know of this kernel
 * (path/conn/elsewhere.h). The agent reads it from the kernel's description of its types, and
 * writes it when somebody asks for such drops.
 */
#pragma once

#include "lib/map.h"

enum { IGNORED_WORDS = 4 };

struct dropped_packets {
	__u32 head; /* offsets of fields in `struct sk_buff` */
	__u32 network_header;
	__u32 socket;
	__u32 zero;
	__u64 ignored[IGNORED_WORDS]; /* a bit for each reason that is no drop elsewhere */
};

MAP("array", __u32, struct dropped_packets, dropped_packets, 1, 0);

static inline struct dropped_packets *dropped_packets_get(void)
{
	__u32 only = 0;

	return dropped_packets.lookup(&only);
}

/* True if packets with this reason are not told of. Subsystems of the kernel have large numbers. */
static inline bool drop_is_ignored(const struct dropped_packets *dropped, __u32 reason)
{
	__u32 word = reason / 64;

	if (word >= IGNORED_WORDS)
		return false;
	/* Masked where the verifier sees it. */
	asm volatile("" : "+r"(word));
	return dropped->ignored[word % IGNORED_WORDS] >> reason % 64 & 1;
}
