/*
 * What was refused of each service port: a double underscore divides what happened from its reason.
 * The programs make the entry with the first refusal; the agent deletes it with the service port.
 * The same is counted for the node (counters.h).
 */
#pragma once

#include "lib/map.h"
#include "maps/counters.h"

struct refusals {
	REFUSAL_COUNTERS
};

MAP("percpu_hash", __u32, struct refusals, refusals, MAX_SERVICES, BPF_F_NO_PREALLOC);

/* Count a refusal for the node, and for a service port if there is an entry for it. */
#define COUNT_REFUSAL(of_service, field)       \
	do {                                   \
		COUNT(field);                  \
		if (of_service)                \
			(of_service)->field++; \
	} while (0)

/* The counts of a service port; NULL without one, and where there is no room. */
static inline struct refusals *refusals_of(__u32 service)
{
	struct refusals none = {};

	return service ? refusals.lookup_or_try_init(&service, &none) : NULL;
}
