/*
 * Direct flows: first packets to a backend's own address. Mostly they stay as they are.
 *
 * Untranslated connections are some of them, on the backend's node: another node has made them of
 * connections to a NodePort, and has masqueraded them. They are not translated here. But netfilter
 * has to see all of their packets or none. Otherwise it takes an answer for the beginning of a
 * connection of the pod's own, and a CNI's rules give that connection another source. So they take
 * the fast path as a whole, and for that they get a pair of entries that change nothing. All that
 * holds for a connection through a NodePort (path/fast/fast_path.h) holds for them. Fingerprints
 * (maps/fast_flows.h) would not do: entries are not lost while a connection lasts.
 *
 * Only a SYN begins one, so never UDP: a first datagram may be forged, and the pod's answer to it
 * looks like a packet of a flow that the pod itself has begun. Only a port of a masquerade begins
 * one: the programs know which of these ports netfilter uses for its own translations, for instance
 * of a hostPort (path/first/netfilter_ports.h).
 *
 * If room, route or guard is missing, the connection takes the stack, from its SYN on.
 */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/endpoints.h"
#include "maps/netfilter_flows.h"
#include "maps/settings.h"
#include "path/fast/fast_path.h"
#include "path/marks.h"
#include "path/packet.h"
#include "path/pod_netns.h"
#include "path/schedule/backend_select.h"

/* True if a first packet that stays as it is may begin an untranslated connection. */
static inline bool untranslated_possible(const struct settings *settings, struct packet *packet)
{
	struct flow flow = packet->flow;

	flow.hook = 0;
	return flow.protocol == PROTO_TCP && !packet->fragment && !settings->takeover &&
	       is_masquerade_port(settings, flow.source_port) &&
	       from_outside(settings, packet, &packet->flow) &&
	       endpoint_known(&flow.destination, flow.destination_port, PROTO_TCP) &&
	       !netfilter_flow_exists(&flow);
}

/*
 * Return the verdict on a first packet to a backend's own address. The packet stays as it is,
 * unless a connection through a frontend already owns its 5-tuple: then it gets another source
 * port.
 */
static inline int conn_new_direct(struct __sk_buff *skb, const struct settings *settings,
				  struct packet *packet)
{
	struct connection *owner;
	struct flow reply;

	flow_reverse(&reply, &packet->flow, HOOK_EGRESS);
	owner = connection_find(&reply);
	if (owner && pass_noted(skb, settings, &packet->flow)) {
		packet->passes_egress = 1;
		return VERDICT_NONE;
	}
	if (owner && connection_closed(owner)) {
		/*
		 * The entries of a closed connection must not translate the replies of this flow.
		 */
		connection_remove(&reply, owner);
		owner = NULL;
	}
	/* No connection leads to a pair around the wire of this 5-tuple any more. */
	if (!owner)
		masquerade_remove(&packet->flow);
	if (!owner && untranslated_possible(settings, packet)) {
		packet->first.untranslated = 1;
	} else if (!owner) {
		packet->first.direct = endpoint_known(&packet->flow.destination,
						      packet->flow.destination_port,
						      packet->flow.protocol);
		if (packet->first.direct)
			netns_learn(skb, packet, true);
		return VERDICT_NONE;
	} else {
		netns_learn(skb, packet, true);
	}
	__builtin_memset(&packet->first.choice, 0, sizeof(packet->first.choice));
	packet->first.choice.backend.address = packet->flow.destination;
	packet->first.choice.backend.port = packet->flow.destination_port;
	return VERDICT_DNAT;
}

/*
 * Remove the entries of an untranslated connection. A packet from the server's side has shown that
 * it is over.
 */
static inline void untranslated_clear(struct packet *packet)
{
	struct connection *leaving;

	if (packet->flow.hook != HOOK_INGRESS)
		return;
	packet->after = packet->flow;
	packet->after.hook = HOOK_EGRESS;
	leaving = connection_find(&packet->after);
	if (leaving && leaving->outside == OUTSIDE_UNTRANSLATED)
		connection_remove(&packet->after, leaving);
}
