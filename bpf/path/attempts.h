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
#include "maps/connections.h"
#include "maps/settings.h"

#define SYN_AGAIN_MS 200 /* kernels wait for a second; two copies of one come sooner */

/* The step of a packet of a known connection that needs one. */
static inline enum step established_step(const struct connection *connection)
{
	return connection->watched ? STEP_ATTEMPT : STEP_ESTABLISHED;
}

static inline void attempt_end(struct connection *connection, struct connection *other,
			       __u32 failures, __u32 successes)
{
	connection->watched = other->watched = 0;
	outcome_note(connection->counters, failures, successes);
}

/* Note what a packet says of an attempt: both sides' first ones, as connection_progress() has it. */
static inline void attempt_follow(const struct packet *packet, struct connection *connection)
{
	__u8 tcp_flags = packet->tcp_flags;
	struct connection *other;
	struct flow partner;

	other = partner_find(&partner, &packet->flow, connection);
	if (!other)
		return;
	if (connection->reply) {
		if (tcp_flags & TCP_RST)
			attempt_end(connection, other, 1, 0);
	} else if (tcp_flags & TCP_SYN) {
		if (!other->replied &&
		    bpf_ktime_get_coarse_ns() - connection->created >= SYN_AGAIN_MS * NS_PER_MS)
			attempt_end(connection, other, 1, 0);
	} else if (!(tcp_flags & TCP_RST) && other->replied) {
		attempt_end(connection, other, 0, 1);
	}
}

/* An attempt is refused by an ICMP error; `connection` is the entry of replies, found by `key`. */
static inline void attempt_refuse(const struct flow *key, struct connection *connection)
{
	struct connection *other;
	struct flow partner;

	other = partner_find(&partner, key, connection);
	if (other && connection->reply)
		attempt_end(connection, other, 1, 0);
}

static inline int attempt_step(struct __sk_buff *skb, struct packet *packet)
{
	struct connection *connection = connection_find(&packet->flow);

	if (connection && connection->watched)
		attempt_follow(packet, connection);
	return tail_call(skb, STEP_ESTABLISHED);
}
