/* Parsing for XDP: packets in the middle of a TCP or UDP flow, read in memory without helpers. */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/port_filter.h"

#define IPV4_NO_OPTIONS 0x45 /* version 4, a header without options */
#define IPV6_FLOW_INFO 0x0fffffff

struct ethernet {
	__be16 destination[3];
	__be16 source[3];
	__be16 type;
};

/* What is read of a packet before its connection is looked up. */
struct xdp_packet {
	struct flow flow; /* at ingress */
	bool v4;
	__u16 length;		 /* of the IP packet, host order */
	__u32 traffic_class;	 /* as bpf_fib_lookup() takes it; of IPv6 with the flow label */
	struct tcp_progress tcp; /* without TCP it has no flags */
};

static inline bool xdp_parse_v4(void *data, void *end, struct xdp_packet *packet)
{
	struct ipv4_start *ip = data + ETH_HLEN;
	__be32 *addresses = data + ETH_HLEN + IPV4_SOURCE_OFFSET;

	if (data + ETH_HLEN + IPV4_HEADER_LENGTH > end)
		return false;
	if (ip->version_and_length != IPV4_NO_OPTIONS || ip->ttl <= 1 ||
	    ip->fragment & bpf_htons(IPV4_FRAGMENT_OFFSET | IPV4_MORE_FRAGMENTS))
		return false;
	packet->v4 = true;
	packet->traffic_class = ip->tos;
	packet->length = bpf_ntohs(ip->total_length);
	packet->flow.protocol = ip->protocol;
	address_from_v4(&packet->flow.source, addresses[0]);
	address_from_v4(&packet->flow.destination, addresses[1]);
	return true;
}

static inline bool xdp_parse_v6(void *data, void *end, struct xdp_packet *packet)
{
	struct ipv6_start *ip = data + ETH_HLEN;
	__be32 *addresses = data + ETH_HLEN + IPV6_SOURCE_OFFSET;
	__u32 length;

	if (data + ETH_HLEN + IPV6_HEADER_LENGTH > end)
		return false;
	length = bpf_ntohs(ip->payload_length) + IPV6_HEADER_LENGTH;
	if (ip->hop_limit <= 1 || length > 0xffff)
		return false;
	packet->v4 = false;
	packet->traffic_class = ip->version_and_flow & bpf_htonl(IPV6_FLOW_INFO);
	packet->length = length;
	packet->flow.protocol = ip->next_header;
	address_from_v6(&packet->flow.source, addresses);
	address_from_v6(&packet->flow.destination, addresses + 4);
	return true;
}

/*
 * Read the ports. False unless the packet is in the middle of a TCP or UDP flow that may be known.
 */
static inline bool xdp_parse_transport(void *data, void *end, struct xdp_packet *packet, __u32 l4)
{
	__u8 protocol = packet->flow.protocol;
	struct ports *ports = data + l4;
	struct tcp_progress *tcp = data + l4 + TCP_PROGRESS_OFFSET;

	if (packet->length < l4 - ETH_HLEN + UDP_HEADER_LENGTH)
		return false;
	if (protocol == PROTO_TCP) {
		if (data + l4 + TCP_HEADER_LENGTH > end ||
		    tcp->flags & (TCP_SYN | TCP_FIN | TCP_RST))
			return false;
		packet->tcp = *tcp;
	} else if (protocol != PROTO_UDP || data + l4 + UDP_HEADER_LENGTH > end) {
		return false;
	}
	packet->flow.source_port = ports->source;
	packet->flow.destination_port = ports->destination;
	packet->flow.hook = HOOK_INGRESS;
	packet->flow.zero = 0;
	return port_filter_find(HOOK_INGRESS, protocol, ports->source, ports->destination) ||
	       port_filter_find(HOOK_EGRESS, protocol, ports->source, ports->destination);
}

static inline bool xdp_parse(void *data, void *end, struct xdp_packet *packet)
{
	struct ethernet *link = data;

	if (data + ETH_HLEN > end)
		return false;
	if (link->type == bpf_htons(ETHERTYPE_IPV4))
		return xdp_parse_v4(data, end, packet) &&
		       xdp_parse_transport(data, end, packet, ETH_HLEN + IPV4_HEADER_LENGTH);
	if (link->type == bpf_htons(ETHERTYPE_IPV6))
		return xdp_parse_v6(data, end, packet) &&
		       xdp_parse_transport(data, end, packet, ETH_HLEN + IPV6_HEADER_LENGTH);
	return false;
}
