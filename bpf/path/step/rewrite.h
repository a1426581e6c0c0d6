/*
 * STEP_REWRITE: how fragments and SCTP are rewritten, and packets with options of the fast path.
 * And what the chunks of SCTP say of their association.
 */
#pragma once

#include "lib/wire.h"
#include "maps/fragments.h"
#include "path/conn/association.h"
#include "path/fast/fast_path.h"
#include "path/fragments.h"
#include "path/packet.h"
#include "path/rewrite.h"

/*
 * Rewrite what leave() passes to a step. By the fast path it goes only where the stack must not see
 * it, and then to the interface, so that egress does its part.
 */
static inline int rewrite_rare(struct __sk_buff *skb, struct packet *packet)
{
	int verdict;

	if (packet->flow.protocol == PROTO_SCTP && packet->fragment != FRAGMENT_LATER)
		association_track(skb, packet);
	packet->forward.redirected = packet->forward.via & BY_FAST_PATH_ALL &&
				     fast_path_find(skb, packet, packet->forward.via);
	packet->forward.hop = packet->forward.to_peer = 0;
	if (packet->fragment == FRAGMENT_LATER)
		verdict = rewritten(rewrite_addresses(skb, packet));
	else if (packet->flow.protocol == PROTO_SCTP)
		verdict = rewritten(rewrite_sctp(skb, packet));
	else
		verdict = rewritten(rewrite(skb, packet));
	if (verdict != TC_ACT_UNSPEC)
		fragment_passed(packet);
	else if (packet->fragment == FRAGMENT_FIRST)
		fragment_note(packet, FRAGMENT_TRANSLATED);
	if (verdict != TC_ACT_UNSPEC || !packet->forward.redirected)
		return verdict;
	return decrement_hops(skb, packet) ? rewritten(-1) : fast_path_leave(skb, packet);
}
