/* The routes of the fast path: asked for once in a while, and kept in maps/cached_routes.h. */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/cached_routes.h"
#include "maps/hardware_addresses.h"
#include "maps/interfaces.h"
#include "maps/pod_ports.h"
#include "path/fast/route.h"
#include "path/packet.h"

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

	/* So the kernel learns now and then that the neighbour of a pod is in use, and checks it. */
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

	/* What is there would be found by those that it is of, and without a route from here on. */
	cached->tick = cached_route_now() - 1;
	comes_by = interfaces.lookup(&ifindex);
	/* Another program may have been attached to it, which has to see what comes by it. */
	if (!comes_by || !comes_by->shortcut)
		return false;
	cached->of_port = comes_by->bridge != 0;
	if (cached->of_port)
		ifindex = comes_by->bridge;
	if (!route_find(skb, route, &between, v4, ifindex, traffic_class, length, &neighbour))
		return false;
	flow_reverse(&back, &between, 0);
	cached->comes_by = route->ifindex;
	/*
	 * Between ports of one bridge, answers are switched, and the stack may see them there
	 * (br_netfilter): it has to see all of the connection.
	 */
	cached->both_ways =
		!(cached->of_port && route->ifindex == ifindex) &&
		route_find(skb, route, &back, v4, cached->comes_by, traffic_class, 0, &neighbour) &&
		route->ifindex == ifindex;
	if (cached->both_ways && cached->of_port && comes_by->peer && neighbour)
		pod_port_note(skb, &flow->source, route->dmac);
	/* Asked once more, as one answer overwrites the other. */
	leaves_by =
		route_find(skb, route, &between, v4, ifindex, traffic_class, length, &neighbour);
	if (!leaves_by)
		return false;
	cached->source = flow->source;
	cached->destination = flow->destination;
	cached->comes_by = skb->ifindex;
	cached->traffic_class = traffic_class;
	/*
	 * The kernel does not tell the MTU while the neighbour is unknown: the route is good for
	 * this packet only.
	 */
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
