/* Source ranges: the clients that restricted frontends of a service accept. */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

struct source_range {
	__u32 prefix; /* bits that count, of all that follows */
	__u32 service;
	struct address network;
};

MAP("lpm_trie", struct source_range, __u32, source_ranges, MAX_SOURCE_RANGES, BPF_F_NO_PREALLOC);

static inline bool source_allowed(__u32 service, const struct address *source)
{
	struct source_range key = {.prefix = 160, .service = service, .network = *source};

	return source_ranges.lookup(&key) != NULL;
}
