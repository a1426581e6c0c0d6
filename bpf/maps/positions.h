/* Positions: the slots of each backend of a service with session affinity. */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

/* A backend may be in two ranges of slots, so it has two. */
struct position_key {
	__u32 service;
	__u32 generation;
	struct address address;
	__be16 port;
	__u16 zero;
};

struct position {
	__u32 slots[2];
};

MAP("hash", struct position_key, struct position, positions, MAX_BACKENDS, BPF_F_NO_PREALLOC);
