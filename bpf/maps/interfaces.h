/*
 * Interfaces that the programs are attached to, by index, and the bridges of those that are ports.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

struct interface {
	/* What to masquerade to when a packet leaves by it; all zero: nothing. */
	struct address v4;
	struct address v6;
	__u8 pods; /* packets that come by it are of pods of this node */
	__u8 peer; /* a veth with its other end in another namespace; maybe a port of a bridge */
	__u8 shortcut; /* the fast path may take packets from it and send by it (an older name) */
	__u8 zero;
	/*
	 * By these numbers `masquerade_choices` holds exceptions from the addresses; 0: it does
	 * not. That of IPv4 is the interface as routes name it.
	 */
	__u32 choices_v4;
	__u32 choices_v6;
	/*
	 * The bridge that it is a port of: IP sees its packets arrive by that. A bridge itself has
	 * its own index here; there are no programs on it. 0: neither.
	 */
	__u32 bridge;
};

MAP("hash", __u32, struct interface, interfaces, MAX_INTERFACES, BPF_F_NO_PREALLOC);
