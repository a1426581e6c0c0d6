/*
 * Routes as the kernel has last given them, for packets of the fast path: the question costs more
 * than all else that they need. Each CPU has a table of its own, in which a pair of addresses has
 * one place. A route is asked for anew after a fraction of a second, so whatever changes on the
 * node is followed, though no agent runs.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

#define CACHED_ROUTES 2048 /* a power of two */

/* A cached route is used for so many jiffies: at most a third of a second, where HZ is 100. */
#define CACHED_ROUTE_SHIFT 5

struct cached_route {
	struct address source;
	struct address destination;
	__u32 comes_by;
	__u32 traffic_class;
	__u16 tick;	/* when it was asked for */
	__u16 mtu;	/* of the way, IP header included */
	__u8 both_ways; /* packets back to the source leave by the interface that these come by */
	__u8 of_port;	/* these come by the port of a bridge */
	__u8 asked;	/* how often */
	__u8 pod;	/* it leads to a pod of this node by the pod's interface, or past that */
	__u8 zero;
	__u32 peer; /* into a pod, past this interface of the pod; 0: by an interface */
	__u32 zero_too;
	__u64 route[8]; /* struct bpf_fib_lookup */
};

MAP("percpu_array", __u32, struct cached_route, cached_routes, CACHED_ROUTES, 0);

static inline __u16 cached_route_now(void)
{
	return bpf_jiffies64() >> CACHED_ROUTE_SHIFT;
}

static inline struct cached_route *
cached_route_place(const struct address *source, const struct address *destination, __u32 comes_by)
{
	__u64 mix = ((__u64)source->words[2] << 32 | source->words[3]) * 0x9e3779b97f4a7c15ULL;
	__u32 index;

	mix ^= (__u64)destination->words[2] << 32 | destination->words[3];
	mix += comes_by;
	mix *= 0xff51afd7ed558ccdULL;
	index = mix >> 32 & (CACHED_ROUTES - 1);
	return cached_routes.lookup(&index);
}

static inline bool cached_route_is(const struct cached_route *cached, const struct address *source,
				   const struct address *destination, __u32 comes_by,
				   __u32 traffic_class)
{
	return cached->tick == cached_route_now() && cached->comes_by == comes_by &&
	       cached->traffic_class == traffic_class &&
	       address_equal(&cached->destination, destination) &&
	       address_equal(&cached->source, source);
}
