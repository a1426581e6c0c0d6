/*
 * STEP_ECHO: answering an echo request (ping) to an address of a Service. The request itself
 * becomes the reply, as the kernel's own would be, and goes back where it came in. A request of a
 * process of this node is answered where it leaves, and the reply comes in by that interface. The
 * kernel does not limit how many such replies it sends (icmp_ratemask), so here is no limit.
 */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/counters.h"
#include "maps/fragments.h"
#include "path/answer/answer.h"
#include "path/fragments.h"
#include "path/packet.h"

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

/* Set the hop limit as the reply begins here. Nonzero if that fails. */
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
