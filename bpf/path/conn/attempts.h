/* What a failed attempt to open a connection leaves, and the step of a connection that is watched. */
#pragma once

#include "lib/flow.h"
#include "maps/backend_outcomes.h"
#include "maps/backends.h"
#include "maps/connections.h"
#include "path/tail_calls.h"

/* The step of a packet of a known connection that needs one. */
static inline enum step established_step(const struct connection *connection)
{
	return connection->watched ? STEP_ATTEMPT : STEP_ESTABLISHED;
}

/* An attempt has failed. If it was a trial, the agent ends that: until then, no other one tries. */
static inline void attempt_fail(struct connection *connection, struct connection *other)
{
	if (connection->watched != WATCHED_FAILED)
		outcome_note(connection->counters, 1, 0);
	connection->watched = other->watched = WATCHED_FAILED;
}

/* An attempt is refused by an ICMP error; `connection` is the entry of replies, found by `key`. */
static inline void attempt_refuse(const struct flow *key, struct connection *connection)
{
	struct connection *other;
	struct flow partner;

	other = partner_find(&partner, key, connection);
	if (other && connection->reply)
		attempt_fail(connection, other);
}
