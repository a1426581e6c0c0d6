/* TCP sockets of the node that were bound to a port when connect() sent them to a backend. */
#pragma once

#include "lib/map.h"
#include "maps/endpoints.h"

/* What no two sockets of one address may share: the backend, and their own port. */
struct bound_key {
	struct endpoint_key backend;
	__u32 port;
};

/*
 * The cookie of the socket that took them last. Two frontends may lead one port to one backend: the
 * second connect() would fail, so another backend is chosen for it, if there is one. An entry that
 * is evicted or out of date costs no more than a choice that is made again.
 */
MAP("lru_hash", struct bound_key, __u64, bound_sockets, 4096, 0);
