/*
 * The fast path for packets that are not translated: direct traffic between pods, and traffic of
 * sockets that were translated. It serves them on the node of the sender and on the node of the
 * receiver.
 */
#pragma once

#include "lib/csum.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/wire.h"
#include "maps/cached_routes.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/endpoints.h"
#include "maps/established_flows.h"
#include "maps/fast_flows.h"
#include "maps/settings.h"
#include "path/fast/fast_path.h"
#include "path/fast/route.h"
#include "path/marks.h"
#include "path/packet.h"
#include "path/pod_netns.h"
#include "path/rewrite.h"

struct ipv4_frame {
	__u8 addresses[MAC_BYTES];
	__be16 type;
	struct ipv4_start ip;
} __attribute__((packed));

/* Decrement the time to live, and address the frame to a neighbour if `to` is not NULL. */
static inline int forward_ipv4(struct __sk_buff *skb, const struct bpf_fib_lookup *to)
{
	struct ipv4_frame frame;

	if (!read_bytes(skb, ETH_HLEN, &frame.ip, sizeof(frame.ip)))
		return -1;
	frame.ip.checksum = checksum_fold((__u16)~frame.ip.checksum + (__u16)~bpf_htons(1 << 8));
	frame.ip.ttl--;
	if (!to)
		return bpf_skb_store_bytes(skb, ETH_HLEN + IPV4_TTL_OFFSET, &frame.ip.ttl, 4, 0);
	__builtin_memcpy(frame.addresses, to->dmac, MAC_BYTES / 2);
	__builtin_memcpy(frame.addresses + MAC_BYTES / 2, to->smac, MAC_BYTES / 2);
	frame.type = bpf_htons(ETHERTYPE_IPV4);
	return bpf_skb_store_bytes(skb, 0, &frame, sizeof(frame), 0);
}

/* True if a packet is of a flow that began between pods, and may skip netfilter. */
static inline bool direct_flow_is_fast(const struct settings *settings, const struct packet *packet)
{
	const struct flow *flow = &packet->flow;

	if (flow->protocol == PROTO_TCP && tcp_opens(packet->tcp_flags))
		return fast_flow_begin(settings, flow);
	if (flow->protocol == PROTO_TCP && packet->tcp_flags & TCP_SYN)
		fast_flow_forget_ended(flow);
	if (flow->protocol != PROTO_UDP)
		return false;
	return fast_flow_udp(settings, flow, false) ||
	       (endpoint_known(&flow->destination, flow->destination_port, PROTO_UDP) &&
		!endpoint_known(&flow->source, flow->source_port, PROTO_UDP) &&
		fast_flow_udp(settings, flow, true));
}

/*
 * Forward a packet of a fast flow as the stack would. If answers would not leave by the interface
 * where the packet came in, the packet takes the stack: a reverse path filter may have to drop it.
 */
static inline int fast_path_forward(struct __sk_buff *skb, const struct settings *settings,
				    struct packet *packet, const struct cached_route *cached)
{
	struct bpf_fib_lookup *route = (struct bpf_fib_lookup *)cached->route;

	if (packet->v4 ? forward_ipv4(skb, cached->peer ? route : NULL) :
			 rewrite_hop_limit(skb, packet))
		return rewritten(-1);
	COUNT(fast_forwarded);
	if (!cached->pod && !cached->peer)
		egress_done_note(skb, settings);
	if (!cached->peer)
		return redirect_to_neighbour(route);
	return packet->v4 ? bpf_redirect_peer(cached->peer, 0) :
			    redirect_to_peer(skb, route, cached->peer);
}

/* True if there is an entry for a flow that begins at ingress, or for what becomes of it later. */
static inline bool flow_has_entry(struct flow *flow)
{
	struct flow at_egress = *flow;

	if (connection_find(flow))
		return true;
	at_egress.hook = HOOK_EGRESS;
	if (connection_find(&at_egress))
		return true;
	flow_reverse(&at_egress, flow, HOOK_EGRESS);
	return connection_find(&at_egress) != NULL;
}

/* Return the route of a packet that is not translated. NULL if it takes the stack. */
static inline struct cached_route *direct_route_find(struct __sk_buff *skb,
						     const struct packet *packet)
{
	struct cached_route *cached = cached_route_find(skb, packet, &packet->flow, false);

	return cached && cached->both_ways ? cached : NULL;
}

/*
 * True if a SYN that has a route opens a fast flow at once, without STEP_FIRST. If it does not, the
 * entry of its 5-tuple stays as it is: the SYN may be forged. Clients take ports in turn. If the
 * SYN has the ports of an older fast flow, it can have no connection, so no entry is looked up.
 */
static inline bool fast_path_opens(struct __sk_buff *skb, const struct settings *settings,
				   struct packet *packet)
{
	__u32 fingerprint;
	__u8 from;
	struct fast_flow *entry = fast_flow_place(&packet->flow, &fingerprint, &from);

	if (!entry || (!fast_flow_was(entry, fingerprint) && flow_has_entry(&packet->flow)) ||
	    !fast_flow_begin_at(settings, entry, fingerprint))
		return false;
	netns_learn(skb, packet, true);
	return true;
}

/*
 * Forward a packet of KIND_FAST_FLOW, as the stack would. TC_ACT_UNSPEC: it takes the stack or, as
 * a SYN, the steps.
 */
static inline int fast_path_go_on(struct __sk_buff *skb, const struct settings *settings,
				  struct packet *packet)
{
	struct cached_route *cached = direct_route_find(skb, packet);

	if (!cached || (tcp_opens(packet->tcp_flags) && !fast_path_opens(skb, settings, packet)))
		return TC_ACT_UNSPEC;
	return fast_path_forward(skb, settings, packet, cached);
}

/*
 * The same for a packet that is not translated, if it is one between pods, of a flow that is fast
 * or becomes so. Pods' traffic with others is left to the stack, because the CNI masquerades it
 * there. A packet without ports, a fragment, and one with more before its IP header take the stack.
 */
static inline int fast_path_direct(struct __sk_buff *skb, const struct settings *settings,
				   struct packet *packet)
{
	struct cached_route *cached;

	if (packet->flow.hook != HOOK_INGRESS || packet->l3 != ETH_HLEN || packet->fragment ||
	    !has_ports(packet->flow.protocol) || packet->passes_egress ||
	    !between_pods(settings, &packet->flow, packet->v4))
		return TC_ACT_UNSPEC;
	if (settings->established && !established_goes_on(&packet->flow, packet->tcp_flags))
		return TC_ACT_UNSPEC;
	cached = direct_route_find(skb, packet);
	return cached && (settings->established || direct_flow_is_fast(settings, packet)) ?
		       fast_path_forward(skb, settings, packet, cached) :
		       TC_ACT_UNSPEC;
}
