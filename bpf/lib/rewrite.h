/* Changing addresses and ports in a packet, each with its checksum. */
#pragma once

#include "lib/address.h"
#include "lib/wire.h"

/* Since 6.16; keeps CHECKSUM_COMPLETE right when an IPv6 address changes. */
#define CSUM_IPV6 (1ULL << 7)

static inline __u32 source_offset(bool v4)
{
	return v4 ? IPV4_SOURCE_OFFSET : IPV6_SOURCE_OFFSET;
}

static inline __u32 destination_offset(bool v4)
{
	return v4 ? IPV4_DESTINATION_OFFSET : IPV6_DESTINATION_OFFSET;
}

/*
 * Replace an address of the IP header at `l3` by the one at `field`. `checksum` is the offset of
 * the checksum that covers it by a pseudo header; 0 when there is none.
 */
static inline int rewrite_address(struct __sk_buff *skb, __u32 l3, bool v4, __u32 field,
				  struct address *from, struct address *to, __u32 checksum,
				  __u64 flags)
{
	__u32 at = l3 + field;
	int error;

	if (v4) {
		error = bpf_l3_csum_replace(skb, l3 + IPV4_CHECKSUM_OFFSET, from->words[3],
					    to->words[3], 4);
		if (!error && checksum)
			error = bpf_l4_csum_replace(skb, checksum, from->words[3], to->words[3],
						    BPF_F_PSEUDO_HDR | flags | 4);
		return error ? error : bpf_skb_store_bytes(skb, at, &to->words[3], 4, 0);
	}
	if (checksum) {
		__s64 difference = bpf_csum_diff(from->words, 16, to->words, 16, 0);

		flags |= BPF_F_PSEUDO_HDR;
		error = bpf_l4_csum_replace(skb, checksum, 0, difference, flags | CSUM_IPV6);
		if (error)
			error = bpf_l4_csum_replace(skb, checksum, 0, difference, flags);
		if (error)
			return error;
	}
	return bpf_skb_store_bytes(skb, at, to->words, 16, 0);
}

static inline int rewrite_port(struct __sk_buff *skb, __u32 at, __be16 from, __be16 to,
			       __u32 checksum, __u64 flags)
{
	int error = bpf_l4_csum_replace(skb, checksum, from, to, flags | 2);

	return error ? error : bpf_skb_store_bytes(skb, at, &to, 2, 0);
}

/* An IPv4 packet without options, from its time to live to its ports. */
struct ipv4_end {
	__u8 ttl;
	__u8 protocol;
	__sum16 checksum;
	__be32 source;
	__be32 destination;
	struct ports ports;
} __attribute__((packed));
