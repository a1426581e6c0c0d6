/*
 * What was refused of each service port: a double underscore divides what happened from its reason.
 * The programs make the entry with the first refusal; the agent deletes it with the service port.
 */
#pragma once

#include "lib/map.h"

struct refusals {
	__u64 rejected__no_endpoints;
	__u64 dropped__no_endpoints;
	__u64 dropped__source_range;
};

MAP("percpu_hash", __u32, struct refusals, refusals, MAX_SERVICES, BPF_F_NO_PREALLOC);

/* The counts of a service port; NULL without one, and where there is no room. */
static inline struct refusals *refusals_of(__u32 service)
{
	struct refusals none = {};

	return service ? refusals.lookup_or_try_init(&service, &none) : NULL;
}
