/* Changing the packet at hand, from its flow to the flow that it becomes. */
#pragma once

#include "lib/address.h"
#include "lib/csum.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/rewrite.h"
#include "lib/wire.h"
#include "maps/counters.h"
#include "maps/crc32c_steps.h"
#include "path/packet.h"

/* The common case at less cost: all that changes is adjacent, and is written at once. */
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
				     (__u16)~bpf_htons(packet->forward.hop << 8));
	end.ttl -= packet->forward.hop;
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

/*
 * Replace addresses only: of SCTP, because its checksum does not cover them, and of later
 * fragments.
 */
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

/*
 * Rewrite SCTP. A checksum of zero is not computed yet, and will be computed with the new ports. To
 * change the checksum of a fragmented packet takes its full length, which is not known.
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

/* Decrement the hop limit of IPv6. (For IPv4, rewrite_ipv4() and decrement_hops() do it.) */
static inline int rewrite_hop_limit(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 at = packet->l3 + IPV6_HOP_LIMIT_OFFSET;
	__u8 limit;

	if (!read_bytes(skb, at, &limit, sizeof(limit)))
		return -1;
	limit--;
	return bpf_skb_store_bytes(skb, at, &limit, sizeof(limit), BPF_F_RECOMPUTE_CSUM);
}

/* Decrement the time to live or hop limit, and change nothing else. */
static inline int decrement_hops(struct __sk_buff *skb, const struct packet *packet)
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

/* Change the packet from `flow` to `after`. */
static inline int rewrite(struct __sk_buff *skb, struct packet *packet)
{
	bool tcp = packet->flow.protocol == PROTO_TCP;
	__u32 checksum = packet->l4 + (tcp ? TCP_CHECKSUM_OFFSET : UDP_CHECKSUM_OFFSET);
	/*
	 * A UDP checksum of zero means that there is none: it must stay, and no other may become
	 * it.
	 */
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
	if (packet->forward.hop && !packet->v4)
		error |= rewrite_hop_limit(skb, packet);
	return error;
}

/* Return the verdict after an attempt to write. `error`: the result of the attempt. */
static inline int rewritten(int error)
{
	if (!error)
		return TC_ACT_UNSPEC;
	COUNT(dropped__rewrite_failed);
	return TC_ACT_SHOT;
}
