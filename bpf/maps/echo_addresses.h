/*
 * Addresses of Services at which echo requests (ping) are answered, and how many service ports ask
 * for that. Only whole addresses are in it; it is a trie because an empty one takes no memory.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

struct echo_address {
	__u32 prefix; /* 128 */
	struct address address;
};

MAP("lpm_trie", struct echo_address, __u32, echo_addresses, MAX_FRONTENDS, BPF_F_NO_PREALLOC);

static inline bool echo_address_has(const struct address *address)
{
	struct echo_address key = {.prefix = 128, .address = *address};

	return echo_addresses.lookup(&key) != NULL;
}
