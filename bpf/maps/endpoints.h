/* Endpoints: every address, port and protocol that is a backend, and of how many service ports. */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

struct endpoint_key {
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 zero;
};

MAP("hash", struct endpoint_key, __u32, endpoints, MAX_BACKENDS, BPF_F_NO_PREALLOC);

static inline bool endpoint_known(const struct address *address, __be16 port, __u8 protocol)
{
	struct endpoint_key key = {.address = *address, .port = port, .protocol = protocol};

	return endpoints.lookup(&key) != NULL;
}
