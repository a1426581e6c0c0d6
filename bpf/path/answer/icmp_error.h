/* A refused packet becomes an ICMP error about itself: port unreachable. */
#pragma once

#include "lib/address.h"
#include "lib/csum.h"
#include "lib/wire.h"
#include "maps/quotes.h"
#include "path/answer/answer.h"
#include "path/packet.h"

#define ICMP_PORT_UNREACHABLE 3
#define ICMPV6_PORT_UNREACHABLE 4

struct ipv4_error {
	struct ipv4_start ip;
	__be32 source;
	__be32 destination;
	struct icmp_header icmp;
} __attribute__((packed));

struct ipv6_error {
	struct ipv6_start ip;
	struct address source;
	struct address destination;
	struct icmp_header icmp;
} __attribute__((packed));

/* What the checksum of ICMPv6 covers beside the message (RFC 8200, 8.1). */
struct ipv6_pseudo_header {
	struct address source;
	struct address destination;
	__be32 length;
	__be32 next_header;
};

static inline int write_ipv4_error(struct __sk_buff *skb, const struct packet *packet, __u32 quoted,
				   __u64 sum)
{
	struct ipv4_error error = {};

	error.ip.version_and_length = 0x45;
	error.ip.total_length = bpf_htons(sizeof(error) + quoted);
	error.ip.ttl = REJECT_TTL;
	error.ip.protocol = PROTO_ICMP;
	error.source = packet->flow.destination.words[3];
	error.destination = packet->flow.source.words[3];
	error.ip.checksum =
		checksum_fold(bpf_csum_diff(0, 0, (__be32 *)&error, IPV4_HEADER_LENGTH, 0));
	error.icmp.type = ICMP_UNREACHABLE;
	error.icmp.code = ICMP_PORT_UNREACHABLE;
	error.icmp.checksum =
		checksum_fold(bpf_csum_diff(0, 0, (__be32 *)&error.icmp, sizeof(error.icmp), sum));
	return bpf_skb_store_bytes(skb, packet->l3, &error, sizeof(error), 0);
}

static inline int write_ipv6_error(struct __sk_buff *skb, const struct packet *packet, __u32 quoted,
				   __u64 sum)
{
	struct ipv6_pseudo_header pseudo = {};
	struct ipv6_error error = {};

	error.ip.version_and_flow = bpf_htonl(0x60000000);
	error.ip.payload_length = bpf_htons(sizeof(error.icmp) + quoted);
	error.ip.next_header = PROTO_ICMPV6;
	error.ip.hop_limit = REJECT_TTL;
	error.source = packet->flow.destination;
	error.destination = packet->flow.source;
	error.icmp.type = ICMPV6_UNREACHABLE;
	error.icmp.code = ICMPV6_PORT_UNREACHABLE;
	pseudo.source = error.source;
	pseudo.destination = error.destination;
	pseudo.length = bpf_htonl(sizeof(error.icmp) + quoted);
	pseudo.next_header = bpf_htonl(PROTO_ICMPV6);
	sum = bpf_csum_diff(0, 0, (__be32 *)&pseudo, sizeof(pseudo), sum);
	error.icmp.checksum =
		checksum_fold(bpf_csum_diff(0, 0, (__be32 *)&error.icmp, sizeof(error.icmp), sum));
	return bpf_skb_store_bytes(skb, packet->l3, &error, sizeof(error), 0);
}

/*
 * Return the bytes to quote: without padding, and whole words, because bpf_csum_diff() sums words.
 */
static inline __u32 quote_size(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 size;

	if (transport_size(skb, packet, &size))
		return 0;
	size += packet->l4 - packet->l3;
	if (size > skb->len - packet->l3)
		size = skb->len - packet->l3;
	if (size > QUOTE_BYTES)
		size = QUOTE_BYTES;
	return size & (QUOTE_BYTES | (QUOTE_BYTES - 4));
}

/* Turn the packet into the error. Nonzero if that fails; the packet is then damaged. */
static inline int make_error(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 room = packet->v4 ? sizeof(struct ipv4_error) : sizeof(struct ipv6_error);
	__u32 only = 0, l3 = packet->l3, size = quote_size(skb, packet);
	struct quote *quote = quotes.lookup(&only);
	__s64 sum;

	if (!quote)
		return -1;
	if (size < IPV4_HEADER_LENGTH || bpf_skb_load_bytes(skb, l3, quote->bytes, size))
		return -1;
	sum = bpf_csum_diff(0, 0, (__be32 *)quote->bytes, size, 0);
	/*
	 * The sum is no error, even if negative: before Linux 6.13 it has 32 bits, and these sizes
	 * are valid.
	 */
	if (bpf_skb_change_tail(skb, l3 + size, 0) ||
	    bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return -1;
	return packet->v4 ? write_ipv4_error(skb, packet, size, sum) :
			    write_ipv6_error(skb, packet, size, sum);
}
