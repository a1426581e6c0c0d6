/*
 * Answering an echo request (ping) to an address of a Service: the request itself becomes the
 * reply, as the kernel's own would be, and goes back by the interface by which it came. What a
 * process of this node sends is answered where it leaves, and the reply arrives by that interface.
 * The kernel does not limit how many such replies it sends (icmp_ratemask), so here is no limit.
 *
 * A request with IPv4 options or IPv6 extension headers is not answered: a reply that has them, too,
 * may be wrong (a recorded route, a routing header). It is handled as if there was no endpoint.
 */
#pragma once

#include "lib/parse_slow.h"
#include "lib/scratch.h"
#include "lib/wire.h"
#include "maps/counters.h"
#include "maps/echo_addresses.h"
#include "maps/fragments.h"
#include "maps/node_addresses.h"
#include "path/backend_select.h"
#include "path/reject.h"
#include "path/reset.h"

/* True if the IP header is followed by the message, or only by the header of a fragment. */
static inline bool echo_header_is_plain(const struct packet *packet)
{
	__u32 header = packet->l4 - packet->l3;

	if (packet->v4)
		return header == IPV4_HEADER_LENGTH;
	return header == IPV6_HEADER_LENGTH + (packet->fragment ? sizeof(struct ipv6_fragment) : 0);
}

/* Return the verdict on an echo request. At egress it is one of this node's own. */
static inline int echo_verdict(struct __sk_buff *skb, struct packet *packet)
{
	struct address *address = &packet->flow.destination;
	int verdict;

	if (echo_address_has(address)) {
		if (node_addresses.lookup(address)) /* the kernel answers */
			return VERDICT_NONE;
		if (echo_header_is_plain(packet) && sender_may_be_answered(skb, packet))
			return VERDICT_ECHO;
	}
	if (packet->flow.hook == HOOK_EGRESS)
		return VERDICT_NONE;
	verdict = guard(address, &packet->choice.service);
	choice_refused(&packet->choice, verdict);
	return verdict;
}

/* Replace the type of the message. Nonzero if that fails. */
static inline int echo_set_reply(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 type = packet->v4 ? ICMP_ECHO_REPLY : ICMPV6_ECHO_REPLY;
	__be16 was, now;

	if (bpf_skb_load_bytes(skb, packet->l4, &was, sizeof(was)))
		return -1;
	now = (was & bpf_htons(0xff)) | bpf_htons(type << 8);
	return bpf_l4_csum_replace(skb, packet->l4 + ICMP_CHECKSUM_OFFSET, was, now, sizeof(now)) ||
	       bpf_skb_store_bytes(skb, packet->l4, &now, sizeof(now), 0);
}

/* Set the hop limit to that of a packet which begins here. Nonzero if that fails. */
static inline int echo_set_hops(struct __sk_buff *skb, const struct packet *packet)
{
	__u8 hops = REJECT_TTL;
	struct ipv4_start ip;

	if (!packet->v4)
		return bpf_skb_store_bytes(skb, packet->l3 + IPV6_HOP_LIMIT_OFFSET, &hops,
					   sizeof(hops), 0);
	return bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)) ||
	       restart_ttl(skb, packet->l3, &ip);
}

/*
 * Turn an echo request, or a fragment of one, into the reply. Swapped addresses change no sum.
 * Nonzero if that fails.
 */
static inline int make_echo_reply(struct __sk_buff *skb, const struct packet *packet)
{
	if (packet->fragment != FRAGMENT_LATER && echo_set_reply(skb, packet))
		return -1;
	return echo_set_hops(skb, packet) || swap_addresses(skb, packet) ||
	       (packet->l3 && swap_link_addresses(skb));
}

/* Answer an echo request. */
static inline int answer_echo(struct __sk_buff *skb, struct packet *packet)
{
	bool leaving = packet->flow.hook == HOOK_EGRESS;

	if (packet->fragment == FRAGMENT_FIRST)
		fragment_note(packet, FRAGMENT_ANSWERED);
	if ((!leaving && drop_tag(skb, packet)) || make_echo_reply(skb, packet)) {
		COUNT(dropped__reject_failed);
		return TC_ACT_SHOT;
	}
	COUNT(echo_requests_answered);
	return bpf_redirect(skb->ifindex, leaving ? BPF_F_INGRESS : 0);
}
