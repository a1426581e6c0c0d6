/* Network namespaces of pods: where their packets come from, as far as that is known. */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

enum source_state {
	SOURCE_UNKNOWN,
	SOURCE_LEARNED, /* from a packet to a frontend */
	SOURCE_TRIED,	/* one call was translated, and its packet has not been seen so far */
	SOURCE_PROVEN,
	SOURCE_UNSURE, /* packets come from several addresses, or by several interfaces */
};

/* Where packets of one family come from, and who sends them. The state is written last. */
struct netns_source {
	struct address address;
	__u64 tried; /* ns, CLOCK_MONOTONIC */
	__u32 ifindex;
	__u32 class; /* of enum client_class, as of the last check */
	__u32 state; /* of enum source_state */
	__u32 trials;
	__u32 due; /* the packet of the next call has to prove the source */
	__u32 zero;
};

struct netns {
	struct netns_source v4;
	struct netns_source v6;
	__u64 checked; /* ns, CLOCK_MONOTONIC: when `left_alone` was found out */
	__u32 left_alone;
	__u32 found; /* the next `left_alone`, while it is being found out */
};

MAP("lru_hash", __u64, struct netns, namespaces, MAX_INTERFACES, 0);

/*
 * The zeros that a namespace begins with. No program writes them; the stack has no room for them.
 */
MAP("array", __u32, struct netns, fresh_namespaces, 1, 0);

static inline void namespace_add(__u64 cookie)
{
	__u32 only = 0;
	struct netns *fresh = fresh_namespaces.lookup(&only);

	if (fresh)
		namespaces.update(&cookie, fresh);
}

static inline struct netns_source *netns_source_of(struct netns *entry, const struct address *to)
{
	return &entry->v4 + family_offset(to);
}
