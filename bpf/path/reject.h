/*
 * Refusing a packet: it becomes an ICMP error about itself, port unreachable, and goes back by the
 * interface by which it came.
 */
#pragma once

#include "lib/address.h"
#include "lib/csum.h"
#include "lib/parse.h"
#include "lib/scratch.h"
#include "lib/wire.h"
#include "maps/counters.h"
#include "maps/icmp_limits.h"
#include "maps/settings.h"
#include "path/reset.h"

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

/*
 * Answer a packet of an unknown connection, which was about to leave, as the frontend would: the
 * reset arrives by the interface by which the packet would have left. So netfilter sees it, and
 * translates it back if it has translated the packet's source.
 */
static inline int reset_unknown(struct __sk_buff *skb, const struct packet *packet)
{
	skb->tc_index = 0;
	if (!may_be_answered(skb, packet) || make_reset(skb, packet) ||
	    (packet->l3 && swap_link_addresses(skb))) {
		COUNT(dropped__reject_failed);
		return TC_ACT_SHOT;
	}
	COUNT(rejected__unknown_connection);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/*
 * Refuse: a SYN over IPv6 by a reset, see reset.h, everything else by an ICMP error. Of those there
 * is a limit, as in the kernel, and of resets there is none.
 */
static inline int reject(struct __sk_buff *skb, struct packet *packet)
{
	struct settings *settings = settings_get();
	int error = -1;

	if (packet->flow.hook == HOOK_EGRESS)
		return reset_unknown(skb, packet);
	if (!settings || !may_be_answered(skb, packet) || drop_tag(skb, packet))
		return TC_ACT_SHOT;
	if (!packet->v4 && packet->flow.protocol == PROTO_TCP && !packet->fragment)
		error = make_reset(skb, packet);
	if (error < 0) {
		if (!icmp_may_be_sent(settings, &packet->flow.source, packet->v4)) {
			COUNT(dropped__icmp_limited);
			return TC_ACT_SHOT;
		}
		error = make_error(skb, packet);
	}
	if (error || (packet->l3 && swap_link_addresses(skb))) {
		COUNT(dropped__reject_failed);
		return TC_ACT_SHOT;
	}
	return bpf_redirect(skb->ifindex, 0);
}
