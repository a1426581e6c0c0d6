/* Failed attempts to open a connection, and the step of a packet that may show one. */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/backend_failures.h"
#include "maps/backend_outcomes.h"
#include "maps/backends.h"
#include "maps/connections.h"
#include "path/tail_calls.h"

/*
 * True if a packet of a connection shows that its attempt fails: a reset of the server before the
 * connection is established, or another SYN of the client. Entries around the wire have no
 * counters, and their connection has other entries.
 */
static inline bool attempt_may_fail(const struct connection *connection, __u8 tcp_flags)
{
	if (connection->established || !connection->counters)
		return false;
	return connection->reply ? tcp_flags & TCP_RST : tcp_opens(tcp_flags);
}

/* Return the step of a packet that a hook leaves to one. */
static inline enum step established_step(const struct connection *connection, __u8 tcp_flags)
{
	return connection->watched || attempt_may_fail(connection, tcp_flags) ? STEP_ATTEMPT :
										STEP_ESTABLISHED;
}

/*
 * Record a failed attempt, once. If it was a probe, the agent ends the trial: until then, no other
 * connection probes the backend.
 */
static inline void attempt_fail(struct connection *connection, struct connection *other,
				enum failure kind)
{
	__u8 watched = connection->watched;

	if (watched >= WATCHED_FAILED)
		return;
	connection->watched = other->watched = watched ? WATCHED_FAILED : WATCHED_COUNTED;
	count_failure(connection->counters, kind);
	if (watched != WATCHED_NOT)
		outcome_note(connection->counters, 1, 0);
}

/*
 * Record that an ICMP error refuses an attempt, if it does. `connection`: the entry of replies,
 * with the key `key`.
 */
static inline void attempt_refuse(const struct flow *key, struct connection *connection)
{
	struct connection *other;
	struct flow partner;

	if (connection->established || !connection->counters || !connection->reply)
		return;
	other = partner_find(&partner, key, connection);
	if (other)
		attempt_fail(connection, other, FAILURE_UNREACHABLE);
}

/*
 * Count a connection that nobody has answered and whose client has sent one SYN only.
 * `connection`: an entry of the pair that is about to be removed. Outlier ejection learns nothing
 * from it: the client may have ended at once.
 */
static inline void attempt_expire(const struct flow *flow, struct connection *connection)
{
	struct connection *other;
	struct flow partner;

	if (flow->protocol != PROTO_TCP || connection->established || connection->reset ||
	    connection->watched >= WATCHED_FAILED || !connection->counters)
		return;
	other = partner_find(&partner, flow, connection);
	if (other && !connection->replied && !other->replied)
		count_failure(connection->counters, FAILURE_UNANSWERED);
}
