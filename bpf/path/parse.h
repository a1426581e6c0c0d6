/* Parsing: what the programs keep of each packet. */
#pragma once

#include "lib/parse.h"
#include "lib/wire.h"
#include "path/packet.h"

/* Reset the fields that parsing does not set for every packet. */
static inline void begin_packet(struct packet *packet)
{
	packet->reuse = 0;
	packet->fragment = FRAGMENT_NONE;
	packet->forward.hop = 0;
	packet->passes_egress = 0;
	packet->search.round = 0;
}

static inline void keep_tcp(struct packet *packet, const struct tcp_progress *tcp)
{
	packet->tcp_flags = tcp->flags;
	packet->tcp_window = tcp->window;
	packet->tcp_acknowledged = tcp->acknowledged;
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
