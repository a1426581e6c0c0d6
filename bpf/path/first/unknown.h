/*
 * Unknown connections: packets from the middle of a connection through a frontend that has no
 * entry. Another node had the connection before this node took over the address, or its entry has
 * been removed. Netfilter would choose a backend anew, and the backend's TCP would answer with a
 * reset. Here egress answers with the reset itself. Other protocols have no such answer: their
 * packets are dropped. No packet to a frontend leaves the node as it came.
 *
 * Packets to NodePorts are left to the node's own TCP, which answers in the same way.
 */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/counters.h"
#include "maps/destinations.h"
#include "maps/frontends.h"
#include "maps/port_filter.h"
#include "maps/source_ranges.h"
#include "path/marks.h"
#include "path/packet.h"
#include "path/schedule/backend_select.h"

/*
 * True if a packet that opens nothing may be for a frontend. The agent has set the bytes of their
 * ports.
 */
static inline bool conn_unknown_possible(const struct packet *packet)
{
	struct port_filter *filter = port_filter_get(HOOK_INGRESS, packet->flow.protocol);

	return filter && filter->destination[port_filter_index(packet->flow.destination_port)] &&
	       destination_may_be_frontend(&packet->flow.destination);
}

/* Return the frontend that a packet is for, or the one that stands for the rest of its address. */
static inline struct frontend *conn_unknown_frontend(const struct packet *packet)
{
	struct frontend_key key = {
		.address = packet->flow.destination,
		.port = packet->flow.destination_port,
		.protocol = packet->flow.protocol,
	};
	struct frontend *frontend = frontends.lookup(&key);

	return frontend ? frontend : frontend_rest(&packet->flow.destination);
}

/* Return the verdict on a packet that opens nothing and has no entry. At ingress, mark it. */
static inline int conn_unknown_verdict(struct __sk_buff *skb, struct packet *packet)
{
	struct frontend *frontend;

	if (packet->flow.hook == HOOK_EGRESS && !unknown_marked(skb))
		return VERDICT_NONE;
	frontend = conn_unknown_frontend(packet);
	if (!frontend)
		return VERDICT_NONE;
	if (packet->flow.hook == HOOK_INGRESS) {
		bool answer = packet->flow.protocol == PROTO_TCP &&
			      !(packet->tcp_flags & TCP_RST) && !packet->fragment &&
			      (!frontend->restricted ||
			       source_allowed(frontend->service, &packet->flow.source));

		skb->tc_index = answer ? UNKNOWN_RESET : UNKNOWN_DROP;
		return VERDICT_NONE;
	}
	if (skb->tc_index == UNKNOWN_RESET)
		return VERDICT_RESET;
	COUNT(dropped__unknown_connection);
	return VERDICT_DROP;
}
