/* Parsing: what the programs have to know of every packet, with as few loads as possible. */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/scratch.h"
#include "lib/unknown_mark.h"
#include "lib/wire.h"
#include "maps/destinations.h"
#include "maps/fast_flows.h"
#include "maps/port_filter.h"
#include "maps/settings.h"
#include "path/fast_path_established.h"

/*
 * Read bytes of the packet; without a helper, if they are in its linear part. False if there are
 * less.
 */
static inline bool read_bytes(struct __sk_buff *skb, __u32 offset, void *to, const __u32 size)
{
	void *at = (void *)(long)skb->data + (offset & 0xff);

	if (at + size <= (void *)(long)skb->data_end) {
		__builtin_memcpy(to, at, size);
		return true;
	}
	return bpf_skb_load_bytes(skb, offset, to, size) == 0;
}

/* Forget what is known of the last packet and is not read of every one. */
static inline void begin_packet(struct packet *packet)
{
	packet->reuse = 0;
	packet->fragment = FRAGMENT_NONE;
	packet->hop = 0;
	packet->passes_egress = 0;
	packet->search.round = 0;
}

static inline void keep_tcp(struct packet *packet, const struct tcp_progress *tcp)
{
	packet->tcp_flags = tcp->flags;
	packet->tcp_window = tcp->window;
	packet->tcp_acknowledged = tcp->acknowledged;
}

/* The part of an IP header that is read first. `length` is 0 if it is no IP header. */
struct ip_start {
	__u32 length;
	__u8 protocol;
	bool unusual; /* a fragment, or IPv6 with extension headers */
	bool later;   /* a fragment after the first, without ports */
};

static inline struct ip_start parse_ip(struct __sk_buff *skb, __u32 offset, bool v4)
{
	struct ip_start start = {};

	if (v4) {
		struct ipv4_start ip;

		if (!read_bytes(skb, offset, &ip, sizeof(ip)) || ip.version_and_length >> 4 != 4)
			return start;
		start.later = ip.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET);
		start.unusual = ip.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET | IPV4_MORE_FRAGMENTS);
		start.length = (ip.version_and_length & 0xf) * 4;
		start.protocol = ip.protocol;
	} else {
		struct ipv6_start ip;

		if (!read_bytes(skb, offset, &ip, sizeof(ip)))
			return start;
		start.length = IPV6_HEADER_LENGTH;
		start.protocol = ip.next_header;
		start.unusual = ipv6_is_extension(ip.next_header);
	}
	return start;
}

static inline bool parse_addresses(struct __sk_buff *skb, __u32 offset, bool v4, struct flow *flow)
{
	if (v4) {
		__be32 pair[2];

		if (!read_bytes(skb, offset + IPV4_SOURCE_OFFSET, pair, sizeof(pair)))
			return false;
		address_from_v4(&flow->source, pair[0]);
		address_from_v4(&flow->destination, pair[1]);
	} else {
		__be32 pair[8];

		if (!read_bytes(skb, offset + IPV6_SOURCE_OFFSET, pair, sizeof(pair)))
			return false;
		address_from_v6(&flow->source, pair);
		address_from_v6(&flow->destination, pair + 4);
	}
	return true;
}

/* True if the packet opens an association: that begins with INIT (RFC 9260, 5.1). */
static inline bool sctp_opens(struct __sk_buff *skb, __u32 l4)
{
	__u8 chunk;

	return !bpf_skb_load_bytes(skb, l4 + SCTP_CHUNK_OFFSET, &chunk, sizeof(chunk)) &&
	       chunk == SCTP_INIT;
}

/* Read the flow of a quoted packet. Return the length of its IP header, 0 if it has no ports. */
static inline __u32 parse_quote(struct __sk_buff *skb, __u32 offset, bool v4, struct flow *flow)
{
	struct ip_start ip = parse_ip(skb, offset, v4);
	struct ports ports;

	if (!ip.length || ip.later || !has_ports(ip.protocol) ||
	    !parse_addresses(skb, offset, v4, flow) ||
	    !read_bytes(skb, offset + ip.length, &ports, sizeof(ports)))
		return 0;
	flow->protocol = ip.protocol;
	flow->source_port = ports.source;
	flow->destination_port = ports.destination;
	return ip.length;
}

enum parsed {
	PARSED_NOTHING, /* nothing in it concerns Services */
	PARSED_FAST,   /* of a flow that the fast path serves, not translated; or it may open one */
	PARSED_DIRECT, /* of no translated connection, but the fast path may take it */
	PARSED,
	PARSED_SLOWLY, /* parse_slow() has to look at it */
	PARSED_EARLY,  /* a fragment that overtook the first of its datagram */
};

/* True for an ICMP error, and for an echo request that arrives or that this node sends. */
static inline bool parse_icmp(struct __sk_buff *skb, __u32 l4, __u8 hook, bool v4, __u8 protocol,
			      __u8 *icmp_error, __u8 *echo)
{
	__u8 type;

	if (protocol != (v4 ? PROTO_ICMP : PROTO_ICMPV6) ||
	    !read_bytes(skb, l4, &type, sizeof(type)))
		return false;
	*icmp_error = v4 ? icmp_is_error(type) : icmpv6_is_error(type);
	*echo = (hook == HOOK_INGRESS || !skb->ingress_ifindex) && is_echo_request(v4, type);
	return *icmp_error || *echo;
}

/* True if a packet is of a VLAN: it comes again, untagged, by the interface of that. */
static inline bool is_of_vlan(struct __sk_buff *skb)
{
	return skb->vlan_present && skb->vlan_tci & VLAN_ID;
}

struct vlan_tag {
	__be16 control;
	__be16 type; /* of what follows */
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

/* Keep the flow of a packet, which has a `protocol`, `ports` and, of TCP, `tcp`. */
static inline bool parse_flow(struct __sk_buff *skb, struct packet *packet, __u8 protocol,
			      const struct ports *ports, const struct tcp_progress *tcp)
{
	packet->flow.source_port = ports->source;
	packet->flow.destination_port = ports->destination;
	packet->flow.protocol = protocol;
	packet->flow.zero = 0;
	keep_tcp(packet, tcp);
	begin_packet(packet);
	return parse_addresses(skb, packet->l3, packet->v4, &packet->flow);
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

/*
 * Compute the bytes of the transport by the IP header, so without padding. Nonzero: cannot be
 * read.
 */
static inline int transport_size(struct __sk_buff *skb, const struct packet *packet, __u32 *size)
{
	if (packet->v4) {
		struct ipv4_start ip;

		if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)))
			return -1;
		*size = packet->l3 + bpf_ntohs(ip.total_length) - packet->l4;
	} else {
		struct ipv6_start ip;

		if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)))
			return -1;
		*size = packet->l3 + IPV6_HEADER_LENGTH + bpf_ntohs(ip.payload_length) - packet->l4;
	}
	return 0;
}
