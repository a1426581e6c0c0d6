/* Changing a packet in memory, for XDP: its flow, hop limit and link layer addresses. */
#pragma once

#include "lib/csum.h"
#include "lib/flow.h"
#include "lib/wire.h"
#include "path/xdp/parse.h"

static inline bool xdp_rewrite_transport(void *data, void *end, __u32 l4, const struct flow *before,
					 const struct flow *after, bool v4)
{
	bool tcp = before->protocol == PROTO_TCP;
	__sum16 *checksum = data + l4 + (tcp ? TCP_CHECKSUM_OFFSET : UDP_CHECKSUM_OFFSET);
	struct ports *ports = data + l4;

	if ((void *)(ports + 1) > end || (void *)(checksum + 1) > end)
		return false;
	ports->source = after->source_port;
	ports->destination = after->destination_port;
	/*
	 * A UDP checksum of zero means that there is none: it must stay, and no other may become
	 * it.
	 */
	if (!tcp && !*checksum)
		return true;
	*checksum = checksum_fold((__u16) ~*checksum + flow_difference(before, after, v4));
	if (!tcp && !*checksum)
		*checksum = 0xffff;
	return true;
}

static inline bool xdp_rewrite_v4(void *data, void *end, const struct flow *before,
				  const struct flow *after)
{
	struct ipv4_start *ip = data + ETH_HLEN;
	__be32 *addresses = data + ETH_HLEN + IPV4_SOURCE_OFFSET;
	__u64 sum;

	if (data + ETH_HLEN + IPV4_HEADER_LENGTH > end)
		return false;
	sum = (__u16)~ip->checksum + addresses_difference(before, after, 3);
	/* The TTL is the upper half of its word. */
	sum += (__u16)~bpf_htons(0x0100);
	ip->checksum = checksum_fold(sum);
	ip->ttl--;
	addresses[0] = after->source.words[3];
	addresses[1] = after->destination.words[3];
	return xdp_rewrite_transport(data, end, ETH_HLEN + IPV4_HEADER_LENGTH, before, after, true);
}

static inline bool xdp_rewrite_v6(void *data, void *end, const struct flow *before,
				  const struct flow *after)
{
	struct ipv6_start *ip = data + ETH_HLEN;
	__be32 *addresses = data + ETH_HLEN + IPV6_SOURCE_OFFSET;

	if (data + ETH_HLEN + IPV6_HEADER_LENGTH > end)
		return false;
	ip->hop_limit--;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		addresses[i] = after->source.words[i];
		addresses[4 + i] = after->destination.words[i];
	}
	return xdp_rewrite_transport(data, end, ETH_HLEN + IPV6_HEADER_LENGTH, before, after,
				     false);
}

static inline bool xdp_rewrite(void *data, void *end, const struct xdp_packet *packet,
			       const struct flow *after, const struct bpf_fib_lookup *route)
{
	struct ethernet *link = data;

	if (data + ETH_HLEN > end)
		return false;
	__builtin_memcpy(link->destination, route->dmac, 6);
	__builtin_memcpy(link->source, route->smac, 6);
	return packet->v4 ? xdp_rewrite_v4(data, end, &packet->flow, after) :
			    xdp_rewrite_v6(data, end, &packet->flow, after);
}
