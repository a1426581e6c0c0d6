/*
 * Uplinks: interfaces that XDP takes packets from and sends them by. Keys are interfaces as the
 * driver names them, so ports of a bond; routes, and everything else, name the bond.
 */
#pragma once

#include "lib/map.h"

#define MAX_UPLINKS 256

struct uplink {
	__u32 ifindex; /* as routes name it: for a port of a bond, the bond */
	__be16 mac[3]; /* only frames to this address are forwarded */
	__u8 redirect; /* send by redirect here, because XDP_TX would lose packets */
	__u8 takes;    /* its driver sends packets that other interfaces redirect to it */
};

MAP("hash", __u32, struct uplink, uplinks, MAX_UPLINKS, BPF_F_NO_PREALLOC);
