/*
 * Backends for which the last search for a masquerade port had to go far. A flood of new
 * connections to one backend takes all ports; if each packet of the flood were followed by a whole
 * search, that would take a processor. So the next searches leave out what has just found no port.
 */
#pragma once

#include "lib/flow.h"
#include "lib/map.h"
#include "maps/settings.h"

#define PORT_SHORTAGES 1024 /* at a time */
#define PORT_SHORTAGE_MS 10

enum shortage {
	SHORTAGE_NONE,
	SHORTAGE_URGENT,    /* only ports of flows that have just ended were left */
	SHORTAGE_EXHAUSTED, /* no such port was found in a whole search, either */
};

struct port_shortage {
	__u64 noted;	/* ns */
	__u32 shortage; /* of enum shortage */
	__u32 zero;
};

/* By the flow to the backend, without its source port. */
MAP("lru_hash", struct flow, struct port_shortage, port_shortages, PORT_SHORTAGES, 0);

/* Return what is known of the ports for `wire`, which has no source port. */
static inline enum shortage port_shortage_of(struct flow *wire)
{
	struct port_shortage *known = port_shortages.lookup(wire);

	if (!known || bpf_ktime_get_coarse_ns() - known->noted > PORT_SHORTAGE_MS * NS_PER_MS)
		return SHORTAGE_NONE;
	return known->shortage;
}

static inline void port_shortage_note(const struct flow *wire, enum shortage shortage)
{
	struct port_shortage note = {
		.noted = bpf_ktime_get_coarse_ns(),
		.shortage = shortage,
	};
	struct flow key = *wire;

	key.source_port = 0;
	port_shortages.update(&key, &note);
}
