/*
 * Routes: the interface and the neighbour that the kernel would send a packet to. The fast path
 * asks the kernel once in a while, and keeps the answers in maps/cached_routes.h.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/wire.h"
#include "maps/cached_routes.h"
#include "maps/hardware_addresses.h"
#include "maps/interfaces.h"
#include "maps/pod_ports.h"
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
		/*
		 * Without the flow label: each connection has another label, and would ask for its
		 * own route.
		 */
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

			if (!read_far_bytes(skb, packet->l4 + TCP_LENGTH_OFFSET, &words,
					    sizeof(words)))
				return false;
			header = (words >> 4) * 4;
		}
		*length = packet->l4 - packet->l3 - packet->jumbo + header + skb->gso_size;
	}
	return *length != 0;
}

/* Each time that so many routes were asked for, a packet into a pod passes the neighbour table. */
#define NEIGHBOUR_TURNS 64

/*
 * Note the port of a bridge where a packet of a pod came in, if the packet has the hardware address
 * `mac`, which the neighbour table has for the pod. So packets that another pod sends in the pod's
 * name change nothing.
 */
static inline void pod_port_note(struct __sk_buff *skb, const struct address *pod, const __u8 *mac)
{
	struct pod_port entry = {.ifindex = skb->ifindex};
	struct pod_port *known;

	if (bpf_skb_load_bytes(skb, sizeof(entry.mac), entry.mac, sizeof(entry.mac)) ||
	    !mac_equal(entry.mac, mac))
		return;
	known = pod_ports.lookup((struct address *)pod);
	if (!known || known->ifindex != entry.ifindex || !mac_equal(known->mac, mac))
		pod_ports.update((struct address *)pod, &entry);
}

/*
 * Return the port of the bridge that `route` leads to, if the pod and nothing else is behind that
 * port; 0: the bridge has to find the port. Entries of deleted pods stay. bpf_fib_lookup() fails if
 * the interface is gone.
 */
static inline __u32 pod_port_find(struct __sk_buff *skb, const struct address *pod,
				  const struct bpf_fib_lookup *route)
{
	struct pod_port *known = pod_ports.lookup((struct address *)pod);
	struct bpf_fib_lookup question = {};
	struct interface *port;
	__u32 ifindex;

	if (!known || !mac_equal(known->mac, route->dmac))
		return 0;
	ifindex = known->ifindex;
	port = interfaces.lookup(&ifindex);
	if (!port || port->bridge != route->ifindex || !port->peer || !port->shortcut)
		return 0;
	question.family = AF_INET;
	question.ifindex = ifindex;
	return bpf_fib_lookup(skb, &question, sizeof(question), 0) < 0 ? 0 : ifindex;
}

/* Return the interface of a pod past which packets go into it; 0: they leave by an interface. */
static inline __u32 peer_find(struct __sk_buff *skb, const struct cached_route *cached,
			      const struct address *pod)
{
	const struct bpf_fib_lookup *route = (const struct bpf_fib_lookup *)cached->route;

	/*
	 * So the kernel learns from time to time that the pod's neighbour entry is in use, and
	 * checks it.
	 */
	if (cached->of_port || cached->asked % NEIGHBOUR_TURNS == 0)
		return 0;
	return cached->pod ? route->ifindex : pod_port_find(skb, pod, route);
}

/*
 * Ask the kernel for the route of packets between the addresses of `flow`, and keep it. False if
 * the fast path has none for this packet. Ports are left out, so all packets between two addresses
 * take the same way.
 */
static inline bool cached_route_ask(struct __sk_buff *skb, struct cached_route *cached,
				    const struct flow *flow, bool v4, __u32 traffic_class,
				    __u16 length)
{
	struct bpf_fib_lookup *route = (struct bpf_fib_lookup *)cached->route;
	struct flow between = {.source = flow->source, .destination = flow->destination}, back;
	struct interface *comes_by, *leaves_by;
	__u32 ifindex = skb->ifindex;
	bool neighbour;

	/* Until there is a new route, packets must not find the old one. */
	cached->tick = cached_route_now() - 1;
	comes_by = interfaces.lookup(&ifindex);
	/* Another program may have been attached to the interface, and has to see its packets. */
	if (!comes_by || !comes_by->shortcut)
		return false;
	cached->of_port = comes_by->bridge != 0;
	if (cached->of_port)
		ifindex = comes_by->bridge;
	if (!route_find(skb, route, &between, v4, ifindex, traffic_class, length, &neighbour))
		return false;
	flow_reverse(&back, &between, 0);
	cached->comes_by = route->ifindex;
	/* Between ports of one bridge answers are switched; br_netfilter must see both ways. */
	cached->both_ways =
		!(cached->of_port && route->ifindex == ifindex) &&
		route_find(skb, route, &back, v4, cached->comes_by, traffic_class, 0, &neighbour) &&
		route->ifindex == ifindex;
	if (cached->both_ways && cached->of_port && comes_by->peer && neighbour)
		pod_port_note(skb, &flow->source, route->dmac);
	/* Asked again, because the route back has overwritten the route. */
	leaves_by =
		route_find(skb, route, &between, v4, ifindex, traffic_class, length, &neighbour);
	if (!leaves_by)
		return false;
	cached->source = flow->source;
	cached->destination = flow->destination;
	cached->comes_by = skb->ifindex;
	cached->traffic_class = traffic_class;
	/* Without a known neighbour the kernel tells no MTU: the route is for this packet only. */
	cached->tick = cached_route_now() - !neighbour;
	cached->mtu = route->mtu_result;
	cached->asked++;
	cached->pod = leaves_by->peer;
	cached->peer = neighbour ? peer_find(skb, cached, &flow->destination) : 0;
	return true;
}

/*
 * Return the route by which the fast path sends a packet of `flow`; NULL: it takes the stack.
 * `any_header`: also if more follows its IP header than its transport.
 */
static inline struct cached_route *cached_route_find(struct __sk_buff *skb,
						     const struct packet *packet,
						     const struct flow *flow, bool any_header)
{
	struct cached_route *cached;
	__u32 traffic_class;
	__u16 length;

	if (!(any_header || packet_is_plain(packet)) ||
	    !routable(skb, packet, &traffic_class, &length))
		return NULL;
	cached = cached_route_place(&flow->source, &flow->destination, skb->ifindex);
	if (!cached)
		return NULL;
	if (!cached_route_is(cached, &flow->source, &flow->destination, skb->ifindex,
			     traffic_class) &&
	    !cached_route_ask(skb, cached, flow, packet->v4, traffic_class, length))
		return NULL;
	/* A port of a bridge gets frames for the hardware address of the bridge. */
	if (skb->pkt_type != PACKET_HOST && !(cached->of_port && frame_is_ours(skb)))
		return NULL;
	return length <= cached->mtu ? cached : NULL;
}
