
#pragma once

#include "lib/address.h"
#include "lib/map.h"

/* Networks that cluster IPs are taken from: only Services have addresses there. */
struct service_network {
	__u32 prefix;
	struct address network;
};

MAP("lpm_trie", struct service_network, __u32, service_networks, 64, BPF_F_NO_PREALLOC);

static inline bool service_network_has(const struct address *address)
{
	struct service_network key = {.prefix = 128, .network = *address};

	return service_networks.lookup(&key) != NULL;
}
