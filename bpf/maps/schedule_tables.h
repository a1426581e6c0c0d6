/*
 * Tables of schedules: the backend of each turn, or of each hash. A row has the number of a slot,
 * counted from the first slot of the policy. Like backends, the table of a generation never
 * changes.
 */
#pragma once

#include "lib/map.h"

enum { TABLE_CHUNK = 128 }; /* places in one entry */

struct schedule_key {
	__u32 service;
	__u32 generation;
	__u32 first; /* slot of the policy */
	__u32 chunk;
};

struct schedule_chunk {
	__u16 slots[TABLE_CHUNK]; /* 0xffff: none, the client is refused */
};

MAP("hash", struct schedule_key, struct schedule_chunk, schedule_tables, MAX_SCHEDULE_CHUNKS,
    BPF_F_NO_PREALLOC);
