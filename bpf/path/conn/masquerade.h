/* The entry that makes egress masquerade a connection. */
#pragma once

#include "lib/flow.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/half_open.h"
#include "maps/masquerade_turns.h"
#include "path/conn/source_ports.h"

/*
 * Write the entry that makes egress masquerade the packets of `entry`, a forward entry that becomes
 * `after`. `again`: it was written before, and is lost. Without `entry->masquerade` egress changes
 * the port alone. False when there is no room.
 */
static inline bool masquerade_request(const struct flow *after, struct connection *entry,
				      bool again)
{
	struct connection pending = *entry;
	struct flow routed = *after;
	int error;

	routed.hook = HOOK_EGRESS;
	if (connection_find(&routed))
		return true;
	if (again)
		entry->masquerade = MASQUERADE_AGAIN;
	pending.counters = 0;
	pending.counted = 0;
	pending.watched = 0;
	pending.observed = 0;
	/* How the connection has ended is kept: the pair around the wire ends with it. */
	pending.replied = pending.established = 0;
	pending.masquerade_pending = 1;
	pending.tick = masquerade_turn_next();
	pending.held = half_open_take();
	error = connection_take(&routed, &pending);
	if (!error)
		return true;
	if (pending.held)
		half_open_release();
	if (error == -EEXIST) /* written by another CPU since */
		return true;
	count_no_room(error);
	return false;
}
