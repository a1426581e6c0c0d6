
#pragma once

#include "lib/map.h"

/*
 * Traffic of one backend. `connections` counts choices, for packets and for sockets. Entry 0 is
 * unused.
 */
struct backend_counters {
	__u64 connections;
	__u64 packets;
	__u64 bytes;
	__u64 reply_packets;
	__u64 reply_bytes;
};

MAP("percpu_array", __u32, struct backend_counters, backend_counters, (MAX_BACKENDS + 1), 0);

static inline void count_choice(__u32 backend)
{
	struct backend_counters *entry = backend_counters.lookup(&backend);

	if (entry)
		entry->connections++;
}

static inline void count_packet(__u32 backend, bool reply, __u32 bytes)
{
	struct backend_counters *entry = backend_counters.lookup(&backend);

	if (!entry)
		return;
	if (reply) {
		entry->reply_packets++;
		entry->reply_bytes += bytes;
	} else {
		entry->packets++;
		entry->bytes += bytes;
	}
}
