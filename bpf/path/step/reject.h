/*
 * STEP_REJECT: refusing a packet. The packet becomes its own answer, a reset or an ICMP error, and
 * goes back where it came in. Or it is dropped, if that is the verdict on it.
 */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/counters.h"
#include "maps/icmp_limits.h"
#include "maps/settings.h"
#include "path/answer/answer.h"
#include "path/answer/icmp_error.h"
#include "path/answer/reset.h"
#include "path/conn/observe.h"
#include "path/packet.h"
#include "path/schedule/backend_select.h"

/*
 * Answer a packet that was about to leave, as the frontend would: one of an unknown connection, or
 * a SYN of the node (first/local_opening.h). The reset comes in by the interface where the packet
 * would have left. So netfilter sees the reset, and translates it back if it has translated the
 * packet's source.
 */
static inline int reset_leaving(struct __sk_buff *skb, const struct packet *packet)
{
	skb->tc_index = 0;
	if (!may_be_answered(skb, packet) || make_reset(skb, packet) ||
	    (packet->l3 && swap_link_addresses(skb))) {
		COUNT(dropped__reject_failed);
		return TC_ACT_SHOT;
	}
	if (packet->first.verdict == VERDICT_NONE)
		COUNT(rejected__unknown_connection);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/*
 * Refuse a packet: a SYN over IPv6 by a reset (answer/reset.h says why), all others by an ICMP
 * error. The number of ICMP errors is limited, as in the kernel. The number of resets is not.
 */
static inline int reject(struct __sk_buff *skb, struct packet *packet)
{
	struct settings *settings = settings_get();
	__u8 verdict = packet->first.verdict;
	int error = -1;

	observe_refusal(packet);
	if (verdict == VERDICT_DROP || verdict == VERDICT_FORBIDDEN)
		return TC_ACT_SHOT;
	if (packet->flow.hook == HOOK_EGRESS)
		return reset_leaving(skb, packet);
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
