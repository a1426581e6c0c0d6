/* Failed attempts to open a connection, and the step of a connection that is watched. */
#pragma once

#include "lib/flow.h"
#include "maps/backend_outcomes.h"
#include "maps/backends.h"
#include "maps/connections.h"
#include "path/tail_calls.h"

/* Return the step of a packet that a hook leaves to one. */
static inline enum step established_step(const struct connection *connection)
{
	return connection->watched ? STEP_ATTEMPT : STEP_ESTABLISHED;
}

/*
 * Record a failed attempt. If it was a probe, the agent ends the trial: until then, no other
 * connection probes the backend.
 */
static inline void attempt_fail(struct connection *connection, struct connection *other)
{
	if (connection->watched != WATCHED_FAILED)
		outcome_note(connection->counters, 1, 0);
	connection->watched = other->watched = WATCHED_FAILED;
}

/*
 * Record that an ICMP error refuses an attempt. `connection`: the entry of replies, with the key
 * `key`.
 */
static inline void attempt_refuse(const struct flow *key, struct connection *connection)
{
	struct connection *other;
	struct flow partner;

	other = partner_find(&partner, key, connection);
	if (other && connection->reply)
		attempt_fail(connection, other);
}
