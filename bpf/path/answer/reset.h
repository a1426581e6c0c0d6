/*
 * Answering a TCP packet by a reset, in two cases: a refused SYN over IPv6, and a packet of an
 * unknown connection (first/unknown.h).
 *
 * Linux takes an ICMPv6 error only as a hint if it arrives while connect() still holds the lock of
 * the socket, and from the other end of a veth pair it arrives so early, on the same processor.
 * connect() then fails only after a retry, a second later. A reset ends it at once.
 */
#pragma once

#include "lib/address.h"
#include "lib/csum.h"
#include "lib/wire.h"
#include "path/answer/answer.h"
#include "path/packet.h"

struct tcp_start {
	struct ports ports;
	__be32 sequence;
	__be32 acknowledged;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__sum16 checksum;
	__be16 urgent;
};

/* Write the reset that answers a packet with `size` bytes of TCP (RFC 9293, 3.10.7.1). */
static inline void answer_by_reset(struct tcp_start *reset, const struct tcp_start *packet,
				   __u32 size)
{
	reset->ports.source = packet->ports.destination;
	reset->ports.destination = packet->ports.source;
	reset->offset = TCP_HEADER_LENGTH / 4 << 4;
	reset->flags = TCP_RST;
	if (packet->flags & TCP_ACK) {
		reset->sequence = packet->acknowledged;
		return;
	}
	reset->flags |= TCP_ACK;
	/* SYN and FIN count as one byte each. */
	reset->acknowledged =
		bpf_htonl(bpf_ntohl(packet->sequence) + size - (packet->offset >> 4) * 4 +
			  !!(packet->flags & TCP_SYN) + !!(packet->flags & TCP_FIN));
}

/*
 * Return by how much the sum of header and data changes. The data is not read: its sum follows
 * from the checksum, which holds that and the sum of the pseudo header.
 */
static inline __u64 reset_difference(const struct packet *packet, const struct tcp_start *reset,
				     __sum16 checksum, __u32 size)
{
	/* IPv4 addresses in their v4-mapped form have the sum that they have by themselves. */
	struct address ends[2] = {packet->flow.source, packet->flow.destination};
	__u64 sum = (__u64)checksum + bpf_htonl(PROTO_TCP) + bpf_htonl(size);

	sum += (__u32)bpf_csum_diff(0, 0, (__be32 *)ends, sizeof(ends), 0);
	return sum + (__u32)bpf_csum_diff(0, 0, (__be32 *)reset, sizeof(*reset), 0);
}

/* Make the IP header fit a packet with a bare TCP header. Nonzero if that fails. */
static inline int shorten_ipv4(struct __sk_buff *skb, __u32 l3, __u32 header)
{
	__u32 checksum = l3 + IPV4_CHECKSUM_OFFSET;
	__be16 length = bpf_htons(header + TCP_HEADER_LENGTH);
	struct ipv4_start ip;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
		return -1;
	return bpf_l3_csum_replace(skb, checksum, ip.total_length, length, 2) ||
	       bpf_skb_store_bytes(skb, l3 + IPV4_LENGTH_OFFSET, &length, sizeof(length), 0) ||
	       restart_ttl(skb, l3, &ip);
}

/* A header of BIG TCP becomes one of padding: the packet says its length now. */
static inline int jumbo_to_padding(struct __sk_buff *skb, const struct packet *packet)
{
	struct ipv6_jumbo padding = {
		.next_header = PROTO_TCP,
		.option = IPV6_OPTION_PADDING,
		.option_length = sizeof(padding.payload_length),
	};

	return packet->jumbo ? bpf_skb_store_bytes(skb, packet->l3 + IPV6_HEADER_LENGTH, &padding,
						   sizeof(padding), 0) :
			       0;
}

static inline int shorten_ipv6(struct __sk_buff *skb, const struct packet *packet, __u32 header)
{
	__u32 l3 = packet->l3;
	struct ipv6_start ip;

	if (jumbo_to_padding(skb, packet) || bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
		return -1;
	ip.version_and_flow = bpf_htonl(0x60000000);
	ip.payload_length = bpf_htons(header - IPV6_HEADER_LENGTH + TCP_HEADER_LENGTH);
	ip.hop_limit = REJECT_TTL;
	return bpf_skb_store_bytes(skb, l3, &ip, sizeof(ip), 0);
}

/*
 * Turn a TCP packet into its answer. Ports and addresses are swapped, which changes no sum. The
 * checksum is changed by the helper, because it may not be computed yet. Negative if the packet
 * cannot be answered so, and is unchanged; positive if it is damaged.
 */
static inline int make_reset(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 l4 = packet->l4, checksum = l4 + TCP_CHECKSUM_OFFSET, size;
	__u32 header = l4 - packet->l3;
	struct tcp_start before, reset = {};
	__u64 difference;

	if (transport_size(skb, packet, &size) || size < sizeof(before) ||
	    bpf_skb_load_bytes(skb, l4, &before, sizeof(before)))
		return -1;
	answer_by_reset(&reset, &before, size);
	difference = reset_difference(packet, &reset, before.checksum, size);
	reset.checksum = before.checksum;
	return bpf_skb_store_bytes(skb, l4, &reset, sizeof(reset), 0) ||
	       bpf_l4_csum_replace(skb, checksum, 0, checksum_difference(difference), 0) ||
	       bpf_l4_csum_replace(skb, checksum, bpf_htonl(size), bpf_htonl(sizeof(reset)),
				   BPF_F_PSEUDO_HDR | 4) ||
	       bpf_skb_change_tail(skb, l4 + sizeof(reset), 0) ||
	       (packet->v4 ? shorten_ipv4(skb, packet->l3, header) :
			     shorten_ipv6(skb, packet, header)) ||
	       swap_addresses(skb, packet);
}
