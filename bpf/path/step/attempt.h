/*
 * STEP_ATTEMPT: a packet that may show a failed attempt to connect; and each packet of a connection
 * that is watched, because its Service ejects endpoints that fail, until the connect result is
 * recorded. This step comes before STEP_ESTABLISHED.
 */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/backend_outcomes.h"
#include "maps/backends.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/quarantined.h"
#include "maps/settings.h"
#include "path/conn/attempts.h"
#include "path/packet.h"
#include "path/tail_calls.h"

#define SYN_AGAIN_MS 200 /* kernels wait for a second; two copies of one come sooner */

static inline void attempt_succeed(struct connection *connection, struct connection *other)
{
	if (connection->watched < WATCHED_FAILED && connection->watched != WATCHED_NOT)
		outcome_note(connection->counters, 0, 1);
	connection->watched = other->watched = WATCHED_NOT;
}

/*
 * A connection does not probe its backend any more: the backend answers, or the client has given
 * up. (The client need not acknowledge the answer. A flood of SYNs with forged sources would keep
 * others out otherwise.)
 */
static inline void attempt_release(struct connection *connection, struct connection *other)
{
	if (connection->watched != WATCHED_TRIAL)
		return;
	connection->watched = other->watched = WATCHED;
	trial_release(connection->counters, connection->created);
}

/*
 * The client sends its SYN again, to a backend that has not answered. Return the step that goes on
 * with the SYN: if the backend is in quarantine, the SYN opens a connection anew, to another
 * backend.
 */
static inline enum step attempt_again(struct packet *packet, struct connection *connection,
				      struct connection *other)
{
	if (bpf_ktime_get_coarse_ns() - connection->created < SYN_AGAIN_MS * NS_PER_MS)
		return STEP_ESTABLISHED;
	attempt_fail(connection, other, FAILURE_UNANSWERED);
	if (connection->watched != WATCHED_FAILED || !is_quarantined(connection->counters))
		return STEP_ESTABLISHED;
	packet->reuse = REUSE_MOVED;
	COUNT(connections_moved);
	return STEP_FIRST;
}

/*
 * Record what a packet says about an attempt: only the first packets of both sides do, as in
 * connection_progress(). Return the step that goes on with the packet.
 */
static inline enum step attempt_follow(struct packet *packet, struct connection *connection)
{
	__u8 tcp_flags = packet->tcp_flags;
	struct connection *other;
	struct flow partner;

	other = partner_find(&partner, &packet->flow, connection);
	if (!other)
		return STEP_ESTABLISHED;
	if (connection->reply && tcp_flags & TCP_RST)
		attempt_fail(connection, other, FAILURE_REFUSED);
	else if (connection->reply || tcp_flags & TCP_RST)
		attempt_release(connection, other);
	else if (tcp_opens(tcp_flags) && !other->replied)
		return attempt_again(packet, connection, other);
	else if (!(tcp_flags & TCP_SYN) && other->replied)
		attempt_succeed(connection, other);
	return STEP_ESTABLISHED;
}

static inline int attempt_step(struct __sk_buff *skb, struct packet *packet)
{
	struct connection *connection = connection_find(&packet->flow);
	enum step step = STEP_ESTABLISHED;

	if (connection)
		step = attempt_follow(packet, connection);
	return tail_call(skb, step);
}
