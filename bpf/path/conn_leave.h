/*
 * Leaving: a packet is rewritten and goes on, by the stack or by the fast path. A connection that
 * is masqueraded gets its source address and port here, when its first packet leaves: only then is
 * it known by which interface.
 */
#pragma once

#include "lib/flow.h"
#include "lib/rewrite.h"
#include "lib/scratch.h"
#include "lib/tail_calls.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/fragments.h"
#include "maps/half_open.h"
#include "maps/masquerade_turns.h"
#include "maps/settings.h"
#include "path/fast_path.h"
#include "path/masquerade_address.h"
#include "path/snat_ports.h"

/*
 * Write the entry by which egress masquerades the packets of `entry`, a forward entry that becomes
 * `after`. Without `masquerade` it changes their port alone. False when there is no room.
 */
static inline bool masquerade_request(const struct flow *after, const struct connection *entry)
{
	struct connection pending = *entry;
	struct flow routed = *after;
	int error;

	routed.hook = HOOK_EGRESS;
	if (connection_find(&routed))
		return true;
	pending.counters = 0;
	pending.counted = 0;
	pending.watched = 0;
	pending.replied = pending.established = 0;
	pending.fin_sent = pending.fin_received = pending.reset = pending.client_first = 0;
	pending.masquerade_pending = 1;
	pending.tick = masquerade_turn_next();
	pending.held = half_open_take();
	error = connection_take(&routed, &pending);
	if (!error)
		return true;
	if (pending.held)
		half_open_release();
	if (error == -EEXIST) /* written by another CPU since */
		return true;
	COUNT(dropped__connections_full);
	return false;
}

/*
 * Choose source address and port for a masqueraded connection whose first packet leaves. -EAGAIN:
 * no port was found in this round; else an error drops the packet. Two packets at once, on two
 * CPUs, find the same port: their searches begin at the same place.
 */
static inline int masquerade(struct __sk_buff *skb, struct packet *packet,
			     struct connection *pending)
{
	struct settings *settings = settings_get();
	struct flow wire = packet->flow;
	struct connection entry = {};
	int error;

	wire.hook = 0;
	if (!settings)
		return -1;
	if (pending->masquerade && !masquerade_address(skb, packet, &wire.source)) {
		COUNT(dropped__no_masquerade_address);
		return -1;
	}
	entry.created = pending->created;
	entry.seen = pending->seen;
	entry.service = pending->service;
	entry.reply = 1;
	entry.held = pending->held;
	entry.shortcut = pending->shortcut ? skb->ifindex : 0;
	entry.outside = pending->outside;
	flow_reverse(&entry.after, &packet->flow, 0);
	if (!packet->search.round)
		packet->search = masquerade_search_begin(settings, &wire, pending->tick);
	error = masquerade_port_take(skb, settings, &packet->search, &wire, &entry);
	if (error)
		return error;
	pending->after = wire;
	pending->masquerade_pending = 0;
	return 0;
}

/*
 * Rewrite a packet and send it on: by the fast path, as far as `via` allows. The route of a first
 * packet is known already. `leaving` is as translate_for_egress() takes it.
 */
static inline int leave(struct __sk_buff *skb, struct packet *packet, enum forwarding via,
			struct connection *leaving)
{
	if (packet->fragment || packet->flow.protocol == PROTO_SCTP ||
	    (via & BY_FAST_PATH_ALL && !packet_is_plain(packet))) {
		packet->via = via;
		return tail_call(skb, STEP_REWRITE);
	}
	if (via != BY_STACK && (packet->hop || fast_path_find(skb, packet, via))) {
		if (via & BY_FAST_PATH_TWICE)
			translate_for_egress(skb, packet, leaving);
		else
			packet->egress_done = 1;
	}
	if (rewrite(skb, packet))
		return rewritten(-1);
	return via != BY_STACK && packet->hop ? fast_path_leave(skb, packet) : TC_ACT_UNSPEC;
}

/* The same for steps: the fast path is a program of its own there. */
static inline int leave_rare(struct __sk_buff *skb, struct packet *packet, enum forwarding via)
{
	packet->via = via;
	return via == BY_STACK ? leave(skb, packet, BY_STACK, NULL) :
				 tail_call(skb, STEP_FAST_PATH);
}

/* Masquerade the first packet of a connection that leaves. */
static inline int masquerade_first(struct __sk_buff *skb, struct packet *packet)
{
	struct connection *connection = connection_find(&packet->flow);

	if (!connection)
		return TC_ACT_SHOT;
	if (!connection->masquerade_pending) /* chosen by another CPU since */
		return tail_call(skb, STEP_ESTABLISHED);
	switch (masquerade(skb, packet, connection)) {
	case 0:
		return tail_call(skb, STEP_ESTABLISHED);
	case -EAGAIN:
		return tail_call(skb, STEP_MASQUERADE);
	default:
		return TC_ACT_SHOT;
	}
}

/*
 * Rewrite what leave() passes to a step. By the fast path it goes only where the stack must not see
 * it, and then to the interface, so that egress does its part.
 */
static inline int rewrite_rare(struct __sk_buff *skb, struct packet *packet)
{
	int verdict;

	packet->redirected = packet->via & BY_FAST_PATH_ALL &&
			     fast_path_find(skb, packet, packet->via);
	packet->hop = packet->to_peer = 0;
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
	if (verdict != TC_ACT_UNSPEC || !packet->redirected)
		return verdict;
	return decrement_hops(skb, packet) ? rewritten(-1) : fast_path_leave(skb, packet);
}
