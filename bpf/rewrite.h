/* Changing a packet: the only functions that write bytes, each with its checksum. */

#define IPV4_CHECKSUM_OFFSET 10
#define IPV4_SOURCE_OFFSET 12
#define IPV4_DESTINATION_OFFSET 16
#define IPV6_SOURCE_OFFSET 8
#define IPV6_DESTINATION_OFFSET 24

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
 * Replace an address of the IP header at `l3` by the one at `field`. `checksum` is the offset of the
 * checksum that covers it by a pseudo header; 0 when there is none.
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

/* Make the packet's flow what it must become. */
static inline int rewrite(struct __sk_buff *skb, struct packet *packet)
{
	bool tcp = packet->flow.protocol == PROTO_TCP;
	__u32 checksum = packet->l4 + (tcp ? TCP_CHECKSUM_OFFSET : UDP_CHECKSUM_OFFSET);
	/* A UDP checksum of zero means there is none, and must neither appear nor vanish. */
	__u64 flags = tcp ? 0 : BPF_F_MARK_MANGLED_0;
	struct flow *before = &packet->flow, *after = &packet->after;
	int error = 0;

	if (!address_equal(&before->source, &after->source))
		error |= rewrite_address(skb, packet->l3, packet->v4, source_offset(packet->v4),
					 &before->source, &after->source, checksum, flags);
	if (!address_equal(&before->destination, &after->destination))
		error |= rewrite_address(skb, packet->l3, packet->v4, destination_offset(packet->v4),
					 &before->destination, &after->destination, checksum, flags);
	if (before->source_port != after->source_port)
		error |= rewrite_port(skb, packet->l4, before->source_port, after->source_port,
				      checksum, flags);
	if (before->destination_port != after->destination_port)
		error |= rewrite_port(skb, packet->l4 + 2, before->destination_port,
				      after->destination_port, checksum, flags);
	return error;
}
