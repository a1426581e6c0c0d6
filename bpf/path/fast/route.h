/* Routes: the interface and the neighbour that the kernel would send a packet to. */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/wire.h"
#include "maps/interfaces.h"
#include "path/packet.h"

#define IPV4_DSCP 0xfc
#define IPV6_DSCP 0x0fc00000
#define TCP_LENGTH_OFFSET 12

/* Return the route that is kept with the packet, in the kernel's layout. */
static inline struct bpf_fib_lookup *route_of(struct packet *packet)
{
	return (struct bpf_fib_lookup *)packet->forward.route;
}

/* Write the question how `flow` is routed. All other bytes of `route` must be zero. */
static inline void route_ask(struct bpf_fib_lookup *route, const struct flow *flow, bool v4,
			     __u32 comes_by, __u32 traffic_class, __u16 length)
{
	route->l4_protocol = flow->protocol;
	route->sport = flow->source_port;
	route->dport = flow->destination_port;
	route->tot_len = length;
	route->ifindex = comes_by;
	if (v4) {
		route->family = AF_INET;
		route->tos = traffic_class;
		route->ipv4_src = flow->source.words[3];
		route->ipv4_dst = flow->destination.words[3];
	} else {
		route->family = AF_INET6;
		route->flowinfo = traffic_class;
		__builtin_memcpy(route->ipv6_src, flow->source.words, 16);
		__builtin_memcpy(route->ipv6_dst, flow->destination.words, 16);
	}
}

/*
 * Return the interface where the kernel would send a packet of `flow` that came in by `comes_by`.
 * NULL if the kernel would not forward it, or would fragment it, or if the interface has no fast
 * path.
 */
static inline struct interface *route_find(struct __sk_buff *skb, struct bpf_fib_lookup *route,
					   const struct flow *flow, bool v4, __u32 comes_by,
					   __u32 traffic_class, __u16 length, bool *neighbour)
{
	struct interface *leaves_by;
	long result;

	__builtin_memset(route, 0, sizeof(*route));
	route_ask(route, flow, v4, comes_by, traffic_class, length);
	result = bpf_fib_lookup(skb, route, sizeof(*route), 0);
	/* An unknown neighbour is no reason for the stack: the redirect resolves it. */
	if (result != BPF_FIB_LKUP_RET_SUCCESS && result != BPF_FIB_LKUP_RET_NO_NEIGH)
		return NULL;
	leaves_by = interfaces.lookup(&route->ifindex);
	*neighbour = result == BPF_FIB_LKUP_RET_SUCCESS;
	return leaves_by && leaves_by->shortcut ? leaves_by : NULL;
}

/* True if the transport follows the IP header at once. */
static inline bool packet_is_plain(const struct packet *packet)
{
	return packet->l4 - packet->l3 == (packet->v4 ? IPV4_HEADER_LENGTH : IPV6_HEADER_LENGTH);
}

/* Find what a route depends on besides the flow. False if the packet must take the stack. */
static inline bool routable(struct __sk_buff *skb, const struct packet *packet,
			    __u32 *traffic_class, __u16 *length)
{
	__u32 l3 = packet->l3;
	__u8 hops;

	/* A tag would stay on the packet. */
	if (skb->vlan_present || l3 > ETH_HLEN)
		return false;
	/* The compiler would drop the bound of read_bytes(), which the verifier needs. */
	asm volatile("" : "+r"(l3));
	if (packet->v4) {
		struct ipv4_start ip;

		if (!read_bytes(skb, l3, &ip, sizeof(ip)))
			return false;
		*traffic_class = ip.tos & IPV4_DSCP;
		*length = bpf_ntohs(ip.total_length);
		hops = ip.ttl;
	} else {
		struct ipv6_start ip;

		if (!read_bytes(skb, l3, &ip, sizeof(ip)))
			return false;
		/* Without its label: each connection has another, and would ask for its own route. */
		*traffic_class = ip.version_and_flow & bpf_htonl(IPV6_DSCP);
		*length = IPV6_HEADER_LENGTH + bpf_ntohs(ip.payload_length);
		hops = ip.hop_limit;
	}
	if (hops <= 1)
		return false;
	/* A GSO packet will be segmented: the length of each segment matters. */
	if (skb->gso_size) {
		__u32 header = UDP_HEADER_LENGTH;

		if (packet->flow.protocol == PROTO_TCP) {
			__u8 words;

			if (!read_bytes(skb, packet->l4 + TCP_LENGTH_OFFSET, &words, sizeof(words)))
				return false;
			header = (words >> 4) * 4;
		}
		*length = packet->l4 - packet->l3 + header + skb->gso_size;
	}
	return *length != 0;
}
