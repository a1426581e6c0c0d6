/* Changing a packet: the only functions that write bytes, each with its checksum. */

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

/* From the header checksum of an IPv4 packet without options to its ports, as they lie there. */
struct ipv4_end {
	__sum16 checksum;
	__be32 source;
	__be32 destination;
	struct ports ports;
} __attribute__((packed));

/* Fold a sum in one's complement to what a checksum holds (RFC 1071). */
static inline __sum16 checksum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Sum in one's complement what replaces the addresses under a checksum (RFC 1624). */
static inline __sum16 ipv4_checksum(__sum16 checksum, const struct flow *before,
				    const struct flow *after)
{
	__u64 sum = (__u16)~checksum;

	sum += (__u32)~before->source.words[3];
	sum += after->source.words[3];
	sum += (__u32)~before->destination.words[3];
	sum += after->destination.words[3];
	return checksum_fold(sum);
}

/* The common case at less cost: all of it lies together and is written at once. */
static inline int rewrite_ipv4(struct __sk_buff *skb, struct packet *packet, __u32 checksum,
			       __u64 flags)
{
	struct flow *before = &packet->flow, *after = &packet->after;
	struct ipv4_end end;
	int error = 0;

	if (!read_bytes(skb, packet->l3 + IPV4_CHECKSUM_OFFSET, &end.checksum,
			sizeof(end.checksum)))
		return -1;
	end.checksum = ipv4_checksum(end.checksum, before, after);
	end.source = after->source.words[3];
	end.destination = after->destination.words[3];
	end.ports.source = after->source_port;
	end.ports.destination = after->destination_port;

	if (end.source != before->source.words[3])
		error |= bpf_l4_csum_replace(skb, checksum, before->source.words[3], end.source,
					     BPF_F_PSEUDO_HDR | flags | 4);
	if (end.destination != before->destination.words[3])
		error |= bpf_l4_csum_replace(skb, checksum, before->destination.words[3],
					     end.destination, BPF_F_PSEUDO_HDR | flags | 4);
	if (end.ports.source != before->source_port)
		error |= bpf_l4_csum_replace(skb, checksum, before->source_port, end.ports.source,
					     flags | 2);
	if (end.ports.destination != before->destination_port)
		error |= bpf_l4_csum_replace(skb, checksum, before->destination_port,
					     end.ports.destination, flags | 2);
	return error ? error :
		       bpf_skb_store_bytes(skb, packet->l3 + IPV4_CHECKSUM_OFFSET, &end,
					   sizeof(end), 0);
}

/* The addresses alone, which no checksum of the transport covers or which it is not in. */
static inline int rewrite_addresses(struct __sk_buff *skb, struct packet *packet)
{
	struct flow *before = &packet->flow, *after = &packet->after;
	int error = 0;

	if (!address_equal(&before->source, &after->source))
		error |= rewrite_address(skb, packet->l3, packet->v4, source_offset(packet->v4),
					 &before->source, &after->source, 0, 0);
	if (!address_equal(&before->destination, &after->destination))
		error |= rewrite_address(skb, packet->l3, packet->v4,
					 destination_offset(packet->v4), &before->destination,
					 &after->destination, 0, 0);
	return error;
}

/* Bytes of the transport: up to the end of what the IP header says, whatever padding follows. */
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

/*
 * SCTP. A checksum of zero is one that is not computed yet: whoever computes it will find the new
 * ports. That of a fragmented packet would need its full length, which no fragment tells.
 */
static inline int rewrite_sctp(struct __sk_buff *skb, struct packet *packet)
{
	struct ports before = {packet->flow.source_port, packet->flow.destination_port};
	struct ports after = {packet->after.source_port, packet->after.destination_port};
	__u32 delta = (before.source ^ after.source) |
		      (__u32)(before.destination ^ after.destination) << 16;
	int error = rewrite_addresses(skb, packet);
	__u32 checksum, size;

	if (error || !delta)
		return error;
	if (packet->fragment || transport_size(skb, packet, &size) ||
	    bpf_skb_load_bytes(skb, packet->l4 + SCTP_CHECKSUM_OFFSET, &checksum, sizeof(checksum)))
		return -1;
	if (checksum) {
		checksum ^= crc32c_advance(delta, size);
		error = bpf_skb_store_bytes(skb, packet->l4 + SCTP_CHECKSUM_OFFSET, &checksum,
					    sizeof(checksum), 0);
	}
	return error ? error : bpf_skb_store_bytes(skb, packet->l4, &after, sizeof(after), 0);
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

	if (packet->v4 && packet->l4 - packet->l3 == IPV4_HEADER_LENGTH)
		return rewrite_ipv4(skb, packet, checksum, flags);
	if (!address_equal(&before->source, &after->source))
		error |= rewrite_address(skb, packet->l3, packet->v4, source_offset(packet->v4),
					 &before->source, &after->source, checksum, flags);
	if (!address_equal(&before->destination, &after->destination))
		error |= rewrite_address(skb, packet->l3, packet->v4,
					 destination_offset(packet->v4), &before->destination,
					 &after->destination, checksum, flags);
	if (before->source_port != after->source_port)
		error |= rewrite_port(skb, packet->l4, before->source_port, after->source_port,
				      checksum, flags);
	if (before->destination_port != after->destination_port)
		error |= rewrite_port(skb, packet->l4 + 2, before->destination_port,
				      after->destination_port, checksum, flags);
	return error;
}
