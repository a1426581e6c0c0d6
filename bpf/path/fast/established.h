/*
 * What leaves, where only the middle of connections is fast (maps/established_flows.h): a packet
 * that comes here by the stack is one that netfilter has let pass.
 */
#pragma once

#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/wire.h"
#include "maps/established_counts.h"
#include "maps/established_flows.h"
#include "maps/established_ports.h"
#include "maps/fast_flows.h"
#include "maps/interfaces.h"
#include "maps/settings.h"
#include "path/packet.h"

/* True if the fast path may take packets from the interface by which this one came, to this one. */
static inline bool established_has_way(const struct __sk_buff *skb)
{
	__u32 came_by = skb->ingress_ifindex, leaves_by = skb->ifindex;
	struct interface *from = interfaces.lookup(&came_by), *to = interfaces.lookup(&leaves_by);

	return from && to && from->shortcut && to->shortcut &&
	       !(to->bridge && from->bridge == to->bridge);
}

/*
 * True if a packet may be of a flow that is fast or, where it leaves, of a flow that may become so.
 * For all other packets nothing else is done.
 */
static inline bool established_is_worth(__u8 hook, __u8 protocol, const struct ports *ports,
					__u8 tcp_flags)
{
	if (established_ports_listed(ports->source, ports->destination))
		return true;
	return hook == HOOK_EGRESS &&
	       established_counts_enough(ports->source, ports->destination, protocol, tcp_flags);
}

/*
 * Note that netfilter has let a packet pass. A SYN begins another connection, and conntrack expects
 * to see every packet of that.
 */
static inline void established_passed(const struct __sk_buff *skb, const struct settings *settings,
				      const struct packet *packet)
{
	struct established_flow candidate = {.state = ESTABLISHED_CANDIDATE}, *entry;
	struct flow key;

	if ((packet->flow.protocol != PROTO_TCP && packet->flow.protocol != PROTO_UDP) ||
	    !ends_in_pod_range(settings, &packet->flow, packet->v4))
		return;
	key = established_key(&packet->flow);
	entry = established_flows.lookup(&key);
	if (established_over(&key, packet->tcp_flags)) {
		if (entry && packet->tcp_flags & TCP_SYN)
			established_remove(&key);
		return;
	}
	if (entry && entry->passed != entry->asked)
		entry->passed = entry->asked;
	if (!entry && fast_flow_passed(&key) && established_has_way(skb))
		established_flows.insert(&key, &candidate);
}
