/*
 * Endpoints that serve a UDP service, whether new flows go to them or not. The agent writes these
 * entries after the frontends and backends of the service.
 */
#pragma once

#include "lib/map.h"
#include "maps/endpoints.h"

/* The value of an entry. One that has left is kept while a choice of it may still be fresh. */
enum udp_state {
	UDP_LEFT,
	UDP_SERVES,
};

/* A choice is trusted for so long although its endpoint has no entry here yet. */
enum { CHOICE_FRESH_SECONDS = 2 };

struct served {
	__u32 service;
	struct endpoint_key by;
};

MAP("hash", struct served, __u32, udp_serving, MAX_BACKEND_SLOTS, BPF_F_NO_PREALLOC);
