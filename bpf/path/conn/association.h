/*
 * The end of an SCTP association: ABORT and SHUTDOWN COMPLETE. As in netfilter, an association that
 * has ended is kept for a short time. STEP_REWRITE reads the chunks: all packets of SCTP come there.
 *
 * What ends an association has the verification tag of its direction, or with the T bit that of the
 * other one (RFC 9260, 8.5.1). Forged packets must not spoil what is known of the tags, so only a
 * backend and a client that have agreed count: a COOKIE ECHO proposes a tag, and a COOKIE ACK, which
 * answers no forged cookie, says that the tags of both directions are those of the association. The
 * fields are those of TCP: `acknowledged` is the tag, and `window` is 1 if the tag is certain.
 */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "path/conn/state.h"
#include "path/packet.h"

static inline bool tag_is_certain(const struct connection *connection, __be32 tag)
{
	return connection->window && tag && connection->acknowledged == tag;
}

/* True if a chunk that ends an association may be genuine. Before it is established, any may. */
static inline bool association_ends(const struct sctp_start *start,
				    const struct connection *connection,
				    const struct connection *other)
{
	return !connection->established || tag_is_certain(connection, start->tag) ||
	       (start->flags & SCTP_REFLECTED_TAG && tag_is_certain(other, start->tag));
}

static inline void association_end(struct flow *flow, struct connection *connection,
				   struct connection *other, bool aborted)
{
	__u8 reset = connection->reply ? RESET_CERTAIN : RESET_CERTAIN | RESET_BY_CLIENT;

	if (connection_closed(connection))
		return;
	connection_closed_note(flow, connection);
	connection->seen = bpf_ktime_get_coarse_ns();
	if (aborted)
		connection->reset = other->reset = reset;
	else
		connection->fin_sent = connection->fin_received = other->fin_sent =
			other->fin_received = 1;
}

/* An association begins; the pair may be of one that has ended. */
static inline void association_agreed(struct connection *connection, struct connection *other,
				      __be32 tag)
{
	connection->acknowledged = tag;
	connection->window = other->window = 1;
	connection->fin_sent = connection->fin_received = connection->reset = 0;
	other->fin_sent = other->fin_received = other->reset = 0;
}

/* Note what the first chunk of a packet says. (Only control chunks may be before an ABORT.) */
static inline void association_track(struct __sk_buff *skb, const struct packet *packet)
{
	struct connection *connection, *other;
	struct flow flow, partner;
	struct sctp_start start;

	if (bpf_skb_load_bytes(skb, packet->l4, &start, sizeof(start)) ||
	    (start.chunk != SCTP_ABORT && start.chunk != SCTP_SHUTDOWN_COMPLETE &&
	     start.chunk != SCTP_COOKIE_ECHO && start.chunk != SCTP_COOKIE_ACK))
		return;
	flow = packet->flow;
	connection = connection_find(&flow);
	if (!connection)
		return;
	other = partner_find(&partner, &flow, connection);
	if (!other)
		return;
	if (start.chunk == SCTP_COOKIE_ECHO) {
		connection->acknowledged = start.tag;
		connection->window = 0;
		return;
	}
	if (start.chunk == SCTP_COOKIE_ACK)
		association_agreed(connection, other, start.tag);
	else if (association_ends(&start, connection, other))
		association_end(&flow, connection, other, start.chunk == SCTP_ABORT);
	load_follow(flow.protocol, connection);
	load_follow(flow.protocol, other);
}
