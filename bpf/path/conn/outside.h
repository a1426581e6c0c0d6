/*
 * Outside connections that begin on the fast path while their answers take the stack. A bridge may
 * have a port without programs, of a pod that was made while no agent ran. Packets to the pod reach
 * it by the bridge. Netfilter would take the pod's first answer after the SYN's for the beginning
 * of a connection of the pod's own (path/first/direct.h). So such a connection takes the stack from
 * its second packet on: from the ACK that follows, conntrack learns which side is the client.
 *
 * Where netfilter drops an answer because it has not seen the SYN, the client sends its SYN again,
 * and that SYN takes the stack. (Masqueraded connections are not meant: without the programs of the
 * pod's port no path serves them.)
 */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/direct_flows.h"
#include "maps/interfaces.h"
#include "maps/settings.h"
#include "path/packet.h"

/* A SYN that comes so long after the first has been sent again: clients wait for a second. */
#define SYN_AGAIN_NS (NS_PER_SECOND / 2)

/*
 * True if a packet that leaves came in by a bridge: the port of the bridge has no programs, or left
 * the packet to the bridge.
 */
static inline bool came_by_bridge(const struct __sk_buff *skb)
{
	__u32 came_by = skb->ingress_ifindex;
	const struct interface *from = interfaces.lookup(&came_by);

	return from && from->bridge == came_by;
}

/*
 * True if a packet with SYN of an outside connection shows that answers take the stack: the packet
 * is such an answer, or the SYN before it was not answered.
 */
static inline bool outside_answers_by_stack(const struct __sk_buff *skb, const struct flow *flow,
					    const struct connection *connection,
					    const struct connection *other)
{
	if (connection->reply)
		return flow->hook == HOOK_EGRESS && !other->masquerade && came_by_bridge(skb);
	return flow->hook == HOOK_INGRESS && !connection->masquerade && !other->replied &&
	       connection_idle(connection, bpf_ktime_get_coarse_ns()) > (__s64)SYN_AGAIN_NS;
}

/*
 * Leave an outside connection to the stack if its answers take the stack. True if its packets have
 * no entry any more, and pass as they are.
 */
static inline bool outside_left_to_stack(const struct __sk_buff *skb, struct packet *packet,
					 struct connection *connection)
{
	struct connection *other;
	struct flow partner;

	if (!connection->outside || !(packet->tcp_flags & TCP_SYN))
		return false;
	other = partner_find(&partner, &packet->flow, connection);
	if (!other || !outside_answers_by_stack(skb, &packet->flow, connection, other))
		return false;
	if (connection->outside == OUTSIDE_UNTRANSLATED) {
		direct_flow_note(connection->reply ? &partner : &packet->flow);
		connection_remove(&packet->flow, connection);
		return true;
	}
	connection->outside = other->outside = 0;
	connection->shortcut = other->shortcut = 0;
	return false;
}
