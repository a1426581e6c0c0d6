/*
 * STEP_ESTABLISHED: a packet of a connection, if the entries of the connection need more than an
 * update.
 */
#pragma once

#include "lib/flow.h"
#include "lib/tcp_options.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/settings.h"
#include "path/conn/established.h"
#include "path/conn/masquerade.h"
#include "path/conn/observe.h"
#include "path/conn/outside.h"
#include "path/fast/fast_path.h"
#include "path/packet.h"
#include "path/tail_calls.h"

/* Handle a packet of a connection, if the entries need more than an update. */
static inline int conn_established_rare(struct __sk_buff *skb, const struct settings *settings,
					struct packet *packet)
{
	struct connection *connection = connection_find(&packet->flow);

	/* Evicted or collected since the program before looked it up: the client will retry. */
	if (!connection)
		return TC_ACT_SHOT;
	if (connection->masquerade_pending)
		return tail_call(skb, STEP_MASQUERADE);
	if (outside_left_to_stack(skb, packet, connection))
		return TC_ACT_UNSPEC;
	if (packet->tcp_flags & TCP_SYN && !connection->established)
		connection->window_shift = tcp_window_shift(skb, packet->l4);
	if (packet->flow.hook == HOOK_INGRESS && connection->masquerade &&
	    !masquerade_request(&connection->after, connection, true))
		return TC_ACT_SHOT;
	if (connection->observed && !connection->established)
		observe_progress(packet, connection);
	packet_go_by(skb, settings, packet, packet->flow.hook, connection);
	return conn_established_advance(skb, settings, packet, connection) ?
		       leave_rare(skb, packet, packet->forward.via) :
		       incomplete_verdict(skb, settings, packet);
}
