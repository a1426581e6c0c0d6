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

/* From the time to live of an IPv4 packet without options to its ports, as they lie there. */
struct ipv4_end {
	__u8 ttl;
	__u8 protocol;
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

/* A sum in one's complement, as a difference that bpf_l4_csum_replace() takes. */
static inline __u32 checksum_difference(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum + (sum >> 32);
}

/* What replaces one word of both addresses under a checksum (RFC 1624); IPv4 has but the last. */
static inline __u64 addresses_difference(const struct flow *before, const struct flow *after,
					 int word)
{
	return (__u64)(__u32)~before->source.words[word] + after->source.words[word] +
	       (__u32)~before->destination.words[word] + after->destination.words[word];
}

/* The same of the ports, each the first or second half of one word. */
static inline __u64 ports_difference(const struct flow *before, const struct flow *after)
{
	return (__u64)(__u16)~before->source_port + after->source_port +
	       (__u16)~before->destination_port + after->destination_port;
}

/* The same of all that a pseudo header and a transport have of a flow. */
static inline __u64 flow_difference(const struct flow *before, const struct flow *after, bool v4)
{
	__u64 sum = addresses_difference(before, after, 3) + ports_difference(before, after);

	if (v4)
		return sum;
	return sum + addresses_difference(before, after, 0) +
	       addresses_difference(before, after, 1) + addresses_difference(before, after, 2);
}

/* The common case at less cost: all of it lies together and is written at once. */
static inline int rewrite_ipv4(struct __sk_buff *skb, struct packet *packet, __u32 checksum,
			       __u64 flags)
{
	struct flow *before = &packet->flow, *after = &packet->after;
	__u64 addresses = addresses_difference(before, after, 3);
	__u64 ports = ports_difference(before, after);
	struct ipv4_end end;
	int error;

	if (!read_bytes(skb, packet->l3 + IPV4_TTL_OFFSET, &end, 4))
		return -1;
	/* The time to live is the first half of its word. */
	end.checksum = checksum_fold(addresses + (__u16)~end.checksum +
				     (__u16)~bpf_htons(packet->hop << 8));
	end.ttl -= packet->hop;
	end.source = after->source.words[3];
	end.destination = after->destination.words[3];
	end.ports.source = after->source_port;
	end.ports.destination = after->destination_port;

	error = bpf_l4_csum_replace(skb, checksum, 0, checksum_difference(addresses),
				    BPF_F_PSEUDO_HDR | flags);
	if (before->source_port != after->source_port ||
	    before->destination_port != after->destination_port)
		error |= bpf_l4_csum_replace(skb, checksum, 0, checksum_difference(ports), flags);
	return error ? error :
		       bpf_skb_store_bytes(skb, packet->l3 + IPV4_TTL_OFFSET, &end, sizeof(end), 0);
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

/* The hop limit of IPv6; that of IPv4 is written with what its header checksum covers. */
static inline int rewrite_hop_limit(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 at = packet->l3 + IPV6_HOP_LIMIT_OFFSET;
	__u8 limit;

	if (!read_bytes(skb, at, &limit, sizeof(limit)))
		return -1;
	limit--;
	return bpf_skb_store_bytes(skb, at, &limit, sizeof(limit), BPF_F_RECOMPUTE_CSUM);
}

/* The time to live or hop limit alone. */
static inline int spend_hop(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 at = packet->l3 + IPV4_TTL_OFFSET;
	__be16 before, after;
	int error;

	if (!packet->v4)
		return rewrite_hop_limit(skb, packet);
	if (!read_bytes(skb, at, &before, sizeof(before)))
		return -1;
	after = bpf_htons(bpf_ntohs(before) - 0x100);
	error = bpf_l3_csum_replace(skb, packet->l3 + IPV4_CHECKSUM_OFFSET, before, after, 2);
	return error ? error : bpf_skb_store_bytes(skb, at, &after, sizeof(after), 0);
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
	if (packet->hop && !packet->v4)
		error |= rewrite_hop_limit(skb, packet);
	return error;
}

/* The verdict after an attempt to write. */
static inline int rewritten(int error)
{
	if (!error)
		return TC_ACT_UNSPEC;
	COUNT(dropped__rewrite_failed);
	return TC_ACT_SHOT;
}
