/*
 * Session affinity: the last backend of each client of a service. The address of the backend is
 * kept and not its slot, because slots change whenever endpoints do; `positions` has its slot of
 * today.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"
#include "maps/backends.h"

struct affinity_key {
	__u32 service;
	struct address client;
};

struct affinity {
	struct address backend;
	__be16 port;
	__u16 zero[3];
	__u64 seen; /* ns, CLOCK_MONOTONIC */
};

MAP("lru_hash", struct affinity_key, struct affinity, affinities, MAX_AFFINITIES, 0);

static inline void affinity_note(__u32 service, const struct address *client,
				 const struct backend *backend)
{
	struct affinity_key client_key = {.service = service, .client = *client};
	struct affinity now = {};

	now.backend = backend->address;
	now.port = backend->port;
	now.seen = bpf_ktime_get_coarse_ns();
	affinities.update(&client_key, &now);
}
