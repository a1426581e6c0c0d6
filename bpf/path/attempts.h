/*
 * How attempts to open connections end, of Services that want to know it. Until that is known, the
 * packets of such a connection take one more step.
 */
#pragma once

#include "lib/flow.h"
#include "lib/scratch.h"
#include "lib/tail_calls.h"
#include "lib/wire.h"
#include "maps/backend_outcomes.h"
#include "maps/backends.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/quarantined.h"
#include "maps/settings.h"

#define SYN_AGAIN_MS 200 /* kernels wait for a second; two copies of one come sooner */

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

static inline void attempt_succeed(struct connection *connection, struct connection *other)
{
	if (connection->watched != WATCHED_FAILED)
		outcome_note(connection->counters, 0, 1);
	connection->watched = other->watched = WATCHED_NOT;
}

/*
 * A connection is no trial any more: its backend answers, or the client has given up. (An answer
 * that the client does not acknowledge must not keep others out: a flood of SYNs would.)
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
 * with it: if the backend is in quarantine, the SYN opens a connection anew, to another one.
 */
static inline enum step attempt_again(struct packet *packet, struct connection *connection,
				      struct connection *other)
{
	if (bpf_ktime_get_coarse_ns() - connection->created < SYN_AGAIN_MS * NS_PER_MS)
		return STEP_ESTABLISHED;
	attempt_fail(connection, other);
	if (!is_quarantined(connection->counters))
		return STEP_ESTABLISHED;
	packet->reuse = REUSE_MOVED;
	COUNT(connections_moved);
	return STEP_FIRST;
}

/*
 * Note what a packet says of an attempt: both sides' first ones, as connection_progress() has it.
 * Return the step that goes on with it.
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
		attempt_fail(connection, other);
	else if (connection->reply || tcp_flags & TCP_RST)
		attempt_release(connection, other);
	else if (tcp_flags & TCP_SYN && !other->replied)
		return attempt_again(packet, connection, other);
	else if (!(tcp_flags & TCP_SYN) && other->replied)
		attempt_succeed(connection, other);
	return STEP_ESTABLISHED;
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

static inline int attempt_step(struct __sk_buff *skb, struct packet *packet)
{
	struct connection *connection = connection_find(&packet->flow);
	enum step step = STEP_ESTABLISHED;

	if (connection && connection->watched)
		step = attempt_follow(packet, connection);
	return tail_call(skb, step);
}
