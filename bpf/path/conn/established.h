/* The packets of a known connection, after its first: its state, and what they become. */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/backend_counters.h"
#include "maps/connections.h"
#include "maps/settings.h"
#include "path/conn/state.h"
#include "path/marks.h"
#include "path/packet.h"

/*
 * Bring the state of a connection forward by a packet of it. False if the packet must be dropped.
 */
static inline bool conn_established_advance(struct __sk_buff *skb, const struct settings *settings,
					    struct packet *packet, struct connection *connection)
{
	packet->after = connection->after;
	/* Other TCP packets are no first packets: their flags show that. */
	if (packet->flow.protocol != PROTO_TCP || tcp_opens(packet->tcp_flags) ||
	    connection_passes_halves(connection))
		pass_note_translated(skb, settings, packet, connection);
	if (connection->counters)
		count_packet(connection->counters, connection->reply, skb->len);
	if (packet->fragment == FRAGMENT_LATER)
		return true;
	connection_track(skb, packet, &packet->flow, connection);
	return connection->established ||
	       connection_progress(&packet->flow, connection, packet->tcp_flags);
}

/*
 * True if egress has nothing to do for a packet that the stack routes. CNIs masquerade packets that
 * leave the pod range or come from outside of it, and egress may have to change the port that
 * netfilter has chosen (path/first/netfilter_ports.h). Egress also looks at first packets, and
 * where it counts the packets that netfilter lets pass, at all of them.
 */
static inline bool leaves_as_routed(const struct settings *settings, const struct packet *packet,
				    const struct connection *connection)
{
	return packet->flow.protocol == PROTO_TCP && !(packet->tcp_flags & TCP_SYN) &&
	       !connection->reply && !connection->masquerade && !settings->established &&
	       ends_in_pod_range(settings, &connection->after, packet->v4);
}

/*
 * True if conn_established_rare() must handle the packet: a port has to be chosen, a pair of
 * entries moved, or options read; or the entry of the masquerade may be gone, after a pause, or
 * because the connection is closed, or because it was gone before; or attempt_step() must see the
 * packet before, as it may show a failure; or the connection is observed, and this may be its
 * answer.
 */
static inline bool conn_established_is_rare(const struct connection *connection, __u8 hook,
					    __u8 tcp_flags)
{
	if (!connection->established &&
	    (!connection->held || connection->masquerade_pending ||
	     connection->watched | connection->observed || tcp_flags & (TCP_SYN | TCP_RST)))
		return true;
	return hook == HOOK_INGRESS && connection->masquerade &&
	       (connection->masquerade == MASQUERADE_AGAIN || connection_closed(connection) ||
		(connection->tick != tick_now() &&
		 connection_idle(connection, bpf_ktime_get_coarse_ns()) > NS_PER_SECOND));
}
