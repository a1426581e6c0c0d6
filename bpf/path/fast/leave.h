/* Leaving: a packet is rewritten and goes on, by the stack or by the fast path. */
#pragma once

#include "lib/wire.h"
#include "maps/connections.h"
#include "path/fast/fast_path.h"
#include "path/fast/route.h"
#include "path/packet.h"
#include "path/rewrite.h"
#include "path/tail_calls.h"

/*
 * Rewrite a packet and send it on: by the fast path, as far as `via` allows. The route of a first
 * packet is known already. `leaving` is as translate_for_egress() takes it.
 */
static inline int leave(struct __sk_buff *skb, struct packet *packet, enum forwarding via,
			struct connection *leaving)
{
	if (packet->fragment || packet->flow.protocol == PROTO_SCTP ||
	    (via & BY_FAST_PATH_ALL && !packet_is_plain(packet))) {
		packet->forward.via = via;
		return tail_call(skb, STEP_REWRITE);
	}
	if (via != BY_STACK && (packet->forward.hop || fast_path_find(skb, packet, via))) {
		if (via & BY_FAST_PATH_TWICE)
			translate_for_egress(skb, packet, leaving);
		else
			packet->forward.egress_done = 1;
	}
	if (rewrite(skb, packet))
		return rewritten(-1);
	return via != BY_STACK && packet->forward.hop ? fast_path_leave(skb, packet) :
							TC_ACT_UNSPEC;
}

/* The same for steps: the fast path is a program of its own there. */
static inline int leave_rare(struct __sk_buff *skb, struct packet *packet, enum forwarding via)
{
	packet->forward.via = via;
	return via == BY_STACK ? leave(skb, packet, BY_STACK, NULL) :
				 tail_call(skb, STEP_FAST_PATH);
}
