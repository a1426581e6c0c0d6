/* How many masquerade ports were asked for on this node: they are used in turn. */
#pragma once

#include "lib/atomic.h"
#include "lib/map.h"
#include "maps/settings.h"

MAP("array", __u32, __u64, masquerade_turns, 1, 0);

/* Return the next turn, below the number of ports. */
static inline __u16 masquerade_turn_next(void)
{
	__u32 only = 0;
	__u64 *turns = masquerade_turns.lookup(&only);
	struct settings *settings = settings_get();

	if (!turns || !settings || !settings->masquerade_ports)
		return 0;
	return atomic_fetch_and_add(turns, 1) % settings->masquerade_ports;
}
