/* Reading the headers of a packet. */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/wire.h"

/* Read bytes from anywhere in the packet. False if there are less. */
static inline bool read_far_bytes(struct __sk_buff *skb, __u32 offset, void *to, const __u32 size)
{
	return bpf_skb_load_bytes(skb, offset, to, size) == 0;
}

/*
 * Read bytes of the packet's first headers, that is with an offset below 256; without a helper, if
 * they are in its linear part. False if there are less.
 */
static inline bool read_bytes(struct __sk_buff *skb, __u32 offset, void *to, const __u32 size)
{
	void *at = (void *)(long)skb->data + (offset & 0xff);

	if (at + size <= (void *)(long)skb->data_end) {
		__builtin_memcpy(to, at, size);
		return true;
	}
	return read_far_bytes(skb, offset, to, size);
}

/* Read bytes of an IP header: of the packet's own, or of one that an ICMP error quotes. */
static inline bool read_ip(struct __sk_buff *skb, __u32 offset, void *to, const __u32 size,
			   const bool quoted)
{
	return quoted ? read_far_bytes(skb, offset, to, size) : read_bytes(skb, offset, to, size);
}

/* The part of an IP header that is read first. `length` is 0 if it is no IP header. */
struct ip_start {
	__u32 length;
	__u8 protocol;
	bool unusual; /* a fragment, or IPv6 with extension headers */
	bool later;   /* a fragment after the first, without ports */
};

static inline struct ip_start parse_ip(struct __sk_buff *skb, __u32 offset, bool v4,
				       const bool quoted)
{
	struct ip_start start = {};

	if (v4) {
		struct ipv4_start ip;

		if (!read_ip(skb, offset, &ip, sizeof(ip), quoted) ||
		    ip.version_and_length >> 4 != 4)
			return start;
		start.later = ip.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET);
		start.unusual = ip.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET | IPV4_MORE_FRAGMENTS);
		start.length = (ip.version_and_length & 0xf) * 4;
		start.protocol = ip.protocol;
	} else {
		struct ipv6_start ip;

		if (!read_ip(skb, offset, &ip, sizeof(ip), quoted))
			return start;
		start.length = IPV6_HEADER_LENGTH;
		start.protocol = ip.next_header;
		start.unusual = ipv6_is_extension(ip.next_header);
	}
	return start;
}

/*
 * True if the extension header of an IPv6 packet is that of BIG TCP: so the packet is a usual one.
 */
static inline bool ipv6_is_big_tcp(struct __sk_buff *skb, __u32 offset, __u8 next_header)
{
	struct ipv6_jumbo jumbo;

	return next_header == IPV6_HOP_BY_HOP && skb->gso_size &&
	       !bpf_skb_load_bytes(skb, offset + IPV6_HEADER_LENGTH, &jumbo, sizeof(jumbo)) &&
	       jumbo.next_header == PROTO_TCP && !jumbo.length && jumbo.option == IPV6_OPTION_JUMBO;
}

static inline bool parse_addresses(struct __sk_buff *skb, __u32 offset, bool v4, struct flow *flow,
				   const bool quoted)
{
	if (v4) {
		__be32 pair[2];

		if (!read_ip(skb, offset + IPV4_SOURCE_OFFSET, pair, sizeof(pair), quoted))
			return false;
		address_from_v4(&flow->source, pair[0]);
		address_from_v4(&flow->destination, pair[1]);
	} else {
		__be32 pair[8];

		if (!read_ip(skb, offset + IPV6_SOURCE_OFFSET, pair, sizeof(pair), quoted))
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
	struct ip_start ip = parse_ip(skb, offset, v4, true);
	struct ports ports;

	if (!ip.length || ip.later || !has_ports(ip.protocol) ||
	    !parse_addresses(skb, offset, v4, flow, true) ||
	    !read_far_bytes(skb, offset + ip.length, &ports, sizeof(ports)))
		return 0;
	flow->protocol = ip.protocol;
	flow->source_port = ports.source;
	flow->destination_port = ports.destination;
	return ip.length;
}

/* True for an ICMP error, and for an echo request that arrives or that this node sends. */
static inline bool parse_icmp(struct __sk_buff *skb, __u32 l4, __u8 hook, bool v4, __u8 protocol,
			      __u8 *icmp_error, __u8 *echo)
{
	__u8 type;

	if (protocol != (v4 ? PROTO_ICMP : PROTO_ICMPV6) ||
	    !read_far_bytes(skb, l4, &type, sizeof(type)))
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

struct ipv6_fragment {
	__u8 next_header;
	__u8 reserved;
	__be16 offset; /* in units of 8 bytes, from bit 3; bit 0: more fragments follow */
	__be32 id;
};
