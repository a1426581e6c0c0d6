/*
 * Netfilter's connections that leave from a port of the masquerade range. Netfilter does not know
 * that range: if two of its connections would have one 5-tuple, it gives the second one any port
 * from 1024 on. kube-proxy's rules do so with each connection that they masquerade. If a connection
 * of ours has that port to the same backend, ingress takes netfilter's answers for ours. So
 * netfilter's connection gets another port here, behind netfilter, by a pair of entries around the
 * wire. If it keeps its port, the port is noted, and no connection of ours gets it.
 *
 * A socket of the node that is bound to such a port is treated in the same way.
 */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/destinations.h"
#include "maps/netfilter_flows.h"
#include "maps/settings.h"
#include "path/conn/masquerade.h"
#include "path/marks.h"
#include "path/packet.h"
#include "path/tail_calls.h"

/*
 * True if a packet that leaves without an entry may have a port of a connection of ours, and is not
 * of that connection, masqueraded at another interface. Where connections from outside are fast,
 * ours are also those that other nodes have masqueraded (path/first/direct.h).
 */
static inline bool netfilter_port_possible(const struct __sk_buff *skb,
					   const struct settings *settings,
					   const struct packet *packet)
{
	return (packet->flow.protocol != PROTO_TCP || tcp_opens(packet->tcp_flags)) &&
	       is_masquerade_port(settings, packet->flow.source_port) &&
	       !masqueraded_noted(skb, settings) &&
	       flow_may_be_to_backend(&packet->flow, settings->fast_outside);
}

/*
 * True if a connection of ours has the port of such a packet, and the packet is not of that
 * connection. Our connection is masqueraded, or it is untranslated and comes from outside. If no
 * connection has the port, note that the port is used.
 */
static inline bool netfilter_port_collides(struct __sk_buff *skb, const struct settings *settings,
					   const struct packet *packet)
{
	struct connection *leaving;
	struct flow reply;

	if (!netfilter_port_possible(skb, settings, packet))
		return false;
	flow_reverse(&reply, &packet->flow, HOOK_INGRESS);
	if (connection_find(&reply))
		return true;
	reply.hook = HOOK_EGRESS;
	leaving = connection_find(&reply);
	if (leaving && leaving->outside == OUTSIDE_UNTRANSLATED)
		return !pass_noted(skb, settings, &packet->flow);
	netfilter_flow_note(&packet->flow);
	return false;
}

/* Have another port chosen for a packet, and for all that follow it. */
static inline int netfilter_port_change(struct __sk_buff *skb, struct packet *packet)
{
	struct connection entry = {};

	entry.created = entry.seen = bpf_ktime_get_coarse_ns();
	if (!masquerade_request(&packet->flow, &entry, false))
		return TC_ACT_SHOT;
	COUNT(source_ports_changed);
	return tail_call(skb, STEP_MASQUERADE);
}
