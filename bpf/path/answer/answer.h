/* What all packets need that begin here: who may be answered, and headers that point back. */
#pragma once

#include "lib/address.h"
#include "lib/wire.h"
#include "path/packet.h"

#define REJECT_TTL 64 /* of every packet that begins here */

/* Set the time to live of `ip`, the header at `l3`, as the packet begins here. */
static inline int restart_ttl(struct __sk_buff *skb, __u32 l3, const struct ipv4_start *ip)
{
	__be16 was = bpf_htons(ip->ttl << 8 | ip->protocol);
	__be16 hops = bpf_htons(REJECT_TTL << 8 | ip->protocol);

	return bpf_l3_csum_replace(skb, l3 + IPV4_CHECKSUM_OFFSET, was, hops, 2) ||
	       bpf_skb_store_bytes(skb, l3 + IPV4_TTL_OFFSET, &hops, sizeof(hops), 0);
}

static inline int swap_addresses(struct __sk_buff *skb, const struct packet *packet)
{
	struct address ends[2] = {packet->flow.destination, packet->flow.source};
	__be32 ends_v4[2] = {ends[0].words[3], ends[1].words[3]};

	return packet->v4 ? bpf_skb_store_bytes(skb, packet->l3 + IPV4_SOURCE_OFFSET, ends_v4,
						sizeof(ends_v4), 0) :
			    bpf_skb_store_bytes(skb, packet->l3 + IPV6_SOURCE_OFFSET, ends,
						sizeof(ends), 0);
}

static inline int swap_link_addresses(struct __sk_buff *skb)
{
	__u8 was[12], now[12];

	if (bpf_skb_load_bytes(skb, 0, was, sizeof(was)))
		return -1;
	__builtin_memcpy(now, was + 6, 6);
	__builtin_memcpy(now + 6, was, 6);
	return bpf_skb_store_bytes(skb, 0, now, sizeof(now), 0);
}

/*
 * True unless the source is an address that must not be answered, or the frame was to more machines
 * than this one (RFC 1122, 3.2.2).
 */
static inline bool sender_may_be_answered(struct __sk_buff *skb, const struct packet *packet)
{
	const struct address *source = &packet->flow.source;

	if (skb->pkt_type != PACKET_HOST && skb->pkt_type != PACKET_OTHERHOST)
		return false;
	if (packet->v4)
		return (source->words[3] & bpf_htonl(0xff000000)) &&
		       (source->words[3] & bpf_htonl(0xff000000)) != bpf_htonl(0x7f000000) &&
		       (source->words[3] & bpf_htonl(0xe0000000)) != bpf_htonl(0xe0000000);
	return (source->words[0] & bpf_htonl(0xff000000)) != bpf_htonl(0xff000000) &&
	       (source->words[0] | source->words[1] | source->words[2]);
}

/* True if a packet may be answered by an error: of a datagram, only its first fragment is. */
static inline bool may_be_answered(struct __sk_buff *skb, const struct packet *packet)
{
	return packet->fragment != FRAGMENT_LATER && sender_may_be_answered(skb, packet);
}

/* Remove a priority tag: the kernel's answers have none. Nonzero if that fails. */
static inline int drop_tag(struct __sk_buff *skb, struct packet *packet)
{
	if (!skb->vlan_present && packet->l3 <= ETH_HLEN)
		return 0;
	if (bpf_skb_vlan_pop(skb))
		return -1;
	if (packet->l3 > ETH_HLEN) {
		packet->l3 -= VLAN_HLEN;
		packet->l4 -= VLAN_HLEN;
	}
	return 0;
}
