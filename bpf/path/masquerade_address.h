/* The address that a packet is masqueraded to: that of the kernel's MASQUERADE. */
#pragma once

#include "lib/address.h"
#include "lib/scratch.h"
#include "maps/interfaces.h"
#include "maps/masquerade_choices.h"
#include "path/route.h"

/*
 * Find the next hop of an IPv4 packet that leaves by `out`: a router, or the packet's destination.
 * (An IPv6 router of an IPv4 route does not count.)
 */
static inline void next_hop_find(struct __sk_buff *skb, struct packet *packet, __u32 out,
				 struct address *hop)
{
	struct bpf_fib_lookup *route = route_of(packet);
	__u32 came_by = skb->ingress_ifindex;
	long result;

	*hop = packet->flow.destination;
	__builtin_memset(route, 0, sizeof(*route));
	route_ask(route, &packet->flow, true, came_by ? came_by : out, 0, 0);
	/* Of a packet of this node's own sockets, only the interface is known by which it leaves. */
	result = bpf_fib_lookup(skb, route, sizeof(*route), came_by ? 0 : BPF_FIB_LOOKUP_OUTPUT);
	if (result != BPF_FIB_LKUP_RET_SUCCESS && result != BPF_FIB_LKUP_RET_NO_NEIGH &&
	    result != BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return;
	if (route->family == AF_INET && route->ifindex == out)
		address_from_v4(hop, route->ipv4_dst);
}

/* Find the address. False if the interface has none of the family. */
static inline bool masquerade_address(struct __sk_buff *skb, struct packet *packet,
				      struct address *address)
{
	__u32 ifindex = skb->ifindex;
	struct interface *entry = interfaces.lookup(&ifindex);
	struct address hop;

	if (!entry)
		return false;
	*address = packet->v4 ? entry->v4 : entry->v6;
	if (packet->v4 && entry->choices_v4) {
		next_hop_find(skb, packet, entry->choices_v4, &hop);
		masquerade_choose(entry->choices_v4, &hop, address);
	} else if (!packet->v4 && entry->choices_v6) {
		masquerade_choose(entry->choices_v6, &packet->flow.destination, address);
	}
	return !address_is_zero(address);
}
