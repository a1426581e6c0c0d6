/* Triage: what kind of flow a packet is of, with as few loads as possible. */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/wire.h"
#include "maps/destinations.h"
#include "maps/fast_flows.h"
#include "maps/port_filter.h"
#include "maps/settings.h"
#include "path/fast/established.h"
#include "path/first/netfilter_ports.h"
#include "path/first/unknown.h"
#include "path/marks.h"
#include "path/packet.h"
#include "path/parse.h"

enum parsed {
	PARSED_NOTHING, /* nothing in it concerns Services */
	PARSED_FAST,   /* of a flow that the fast path serves, not translated; or it may open one */
	PARSED_DIRECT, /* of no translated connection, but the fast path may take it */
	PARSED,
	PARSED_SLOWLY, /* parse_slow() has to look at it */
	PARSED_EARLY,  /* a fragment that overtook the first of its datagram */
};

/*
 * Parse a frame whose type is not IP: it may have a tag in its bytes, that only says a priority.
 * (Most tags are kept beside the frame.)
 */
static inline int parse_tagged(struct __sk_buff *skb, __u32 l2, __u8 hook, struct packet *packet)
{
	struct vlan_tag tag;

	if (l2 != ETH_HLEN || skb->vlan_present ||
	    (skb->protocol != bpf_htons(ETHERTYPE_VLAN) &&
	     skb->protocol != bpf_htons(ETHERTYPE_SERVICE_VLAN)) ||
	    bpf_skb_load_bytes(skb, l2, &tag, sizeof(tag)) || tag.control & bpf_htons(VLAN_ID))
		return PARSED_NOTHING;
	packet->v4 = tag.type == bpf_htons(ETHERTYPE_IPV4);
	if (!packet->v4 && tag.type != bpf_htons(ETHERTYPE_IPV6))
		return PARSED_NOTHING;
	packet->l3 = l2 + VLAN_HLEN;
	packet->flow.hook = hook;
	return PARSED_SLOWLY;
}

/* True if a packet that leaves opens a TCP connection, of this node or as if it were. */
static inline bool opens_at_egress(const struct __sk_buff *skb, const struct settings *settings,
				   __be16 source, __u8 tcp_flags)
{
	return tcp_opens(tcp_flags) &&
	       (!skb->ingress_ifindex || is_masquerade_port(settings, source));
}

/* True if a packet that opens a TCP connection is one between pods, and to no frontend. */
static inline bool fast_flow_may_open(const struct settings *settings, const struct packet *packet)
{
	return ends_in_pod_range(settings, &packet->flow, packet->v4) &&
	       !destination_may_be_frontend(&packet->flow.destination);
}

/* PARSED if a packet may be of a translated connection, by its ports, or open or end any. */
static inline int parse_ports(struct __sk_buff *skb, const struct settings *settings,
			      struct packet *packet, __u8 protocol, const struct ports *ports,
			      const struct tcp_progress *tcp)
{
	__u8 hook = packet->flow.hook;
	bool established = packet->l3 == ETH_HLEN && settings->established;
	bool fast = packet->l3 == ETH_HLEN && hook == HOOK_INGRESS &&
		    (settings->fast_path || established || settings->fast_outside);

	if ((fast || established) && !parse_flow(skb, packet, protocol, ports, tcp))
		return PARSED_NOTHING;
	if (established && hook == HOOK_EGRESS)
		established_passed(skb, settings, packet);
	if (fast && settings->fast_path && protocol == PROTO_TCP &&
	    (tcp_opens(tcp->flags) ? fast_flow_may_open(settings, packet) :
				     fast_flow_goes_on(&packet->flow, tcp->flags)))
		return PARSED_FAST;
	if (tcp_ends(tcp->flags) ||
	    (hook == HOOK_EGRESS ?
		     unknown_marked(skb) ||
			     opens_at_egress(skb, settings, ports->source, tcp->flags) :
		     protocol != PROTO_TCP || tcp_opens(tcp->flags)))
		return PARSED;
	if (port_filter_find(hook, protocol, ports->source, ports->destination) ||
	    (fast && port_filter_find(HOOK_EGRESS, protocol, ports->source, ports->destination))) {
		/* Most packets with such ports are of direct flows to the same backends. */
		bool middle =
			protocol == PROTO_TCP && !(tcp->flags & TCP_SYN) &&
			(fast || established || parse_flow(skb, packet, protocol, ports, tcp));

		if (!middle || !fast_flow_is_untranslated(&packet->flow))
			return PARSED;
	}
	return fast ? PARSED_DIRECT : PARSED_NOTHING;
}

/*
 * Parse a packet whose link layer header has `l2` bytes. Most packets end here, in the middle of a
 * TCP connection that was never translated, so that is found out before anything else is read: by
 * its flow if that is fast, else by its ports. (Replies of the fast path have an entry at egress
 * only, so ingress looks there, too. And the end of a connection may be that of a direct one, see
 * maps/direct_flows.h.)
 */
static inline int parse(struct __sk_buff *skb, __u32 l2, __u8 hook, const struct settings *settings,
			struct packet *packet)
{
	bool v4 = skb->protocol == bpf_htons(ETHERTYPE_IPV4);
	__u8 icmp_error = 0, echo = 0;
	struct tcp_progress tcp = {};
	struct ports ports = {};
	struct ip_start ip = {};
	int parsed = PARSED;
	__u32 l4;

	if (!v4 && skb->protocol != bpf_htons(ETHERTYPE_IPV6))
		return parse_tagged(skb, l2, hook, packet);
	if (!is_of_vlan(skb))
		ip = parse_ip(skb, l2, v4);
	if (!ip.length)
		return PARSED_NOTHING;
	packet->l3 = l2;
	packet->v4 = v4;
	packet->flow.hook = hook;
	if (ip.unusual)
		return PARSED_SLOWLY;
	packet->l4 = l4 = l2 + ip.length;
	if (has_ports(ip.protocol)) {
		if (!read_bytes(skb, l4, &ports, sizeof(ports)))
			return PARSED_NOTHING;
		if (ip.protocol == PROTO_TCP &&
		    !read_bytes(skb, l4 + TCP_PROGRESS_OFFSET, &tcp, sizeof(tcp)))
			return PARSED_NOTHING;
		if (!settings->settling)
			parsed = parse_ports(skb, settings, packet, ip.protocol, &ports, &tcp);
		if (parsed != PARSED)
			return parsed;
	} else if (!parse_icmp(skb, l4, hook, v4, ip.protocol, &icmp_error, &echo)) {
		return PARSED_NOTHING;
	}
	packet->icmp_error = icmp_error;
	packet->echo = echo;
	return parse_flow(skb, packet, ip.protocol, &ports, &tcp) ? PARSED : PARSED_NOTHING;
}

/* True if there may be something to do for a packet of no known connection. */
static inline bool conn_new_possible(const struct __sk_buff *skb, const struct settings *settings,
				     const struct packet *packet, __u8 hook)
{
	if (packet->fragment == FRAGMENT_LATER || address_is_v4_loopback(&packet->flow.destination))
		return false;
	if (packet->reuse || settings->settling)
		return true;
	if (hook == HOOK_EGRESS)
		return unknown_marked(skb) ||
		       (opened_here(skb, packet->tcp_flags) &&
			destination_may_be_frontend(&packet->flow.destination)) ||
		       netfilter_port_possible(skb, settings, packet);
	if (packet->flow.protocol == PROTO_TCP && !tcp_opens(packet->tcp_flags))
		return conn_unknown_possible(packet);
	return destination_may_be_known(&packet->flow);
}
