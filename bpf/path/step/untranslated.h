/*
 * STEP_UNTRANSLATED, after STEP_OPEN: a first packet from outside that stays as it is. Its
 * connection gets a pair of entries that change nothing; first/direct.h says why.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/direct_flows.h"
#include "maps/half_open.h"
#include "maps/interfaces.h"
#include "maps/untranslated.h"
#include "path/conn/source_ports.h"
#include "path/fast/route.h"
#include "path/packet.h"
#include "path/tail_calls.h"

/* True if the route of a first packet leads to a pod of this node, by its interface or a bridge. */
static inline bool leads_to_pod(struct packet *packet)
{
	const struct bpf_fib_lookup *route = route_of(packet);
	__u32 ifindex = route->ifindex;
	struct interface *leaves_by = interfaces.lookup(&ifindex);

	if (packet->forward.to_pod)
		return true;
	if (!leaves_by || leaves_by->bridge != ifindex)
		return false;
	if (packet->v4)
		return route->family == AF_INET &&
		       route->ipv4_dst == packet->after.destination.words[3];
	return address_equal((const struct address *)route->ipv6_dst, &packet->after.destination);
}

/*
 * Write the entries of an untranslated connection. STEP_OPEN has planned its first packet. The
 * entries are never among those that the kernel may evict. After another error than -EEXIST the
 * connection takes the stack.
 */
static inline int untranslated_open(struct __sk_buff *skb, struct packet *packet)
{
	struct connection entry = {.reply = 1, .outside = OUTSIDE_UNTRANSLATED, .held = 1};
	struct flow reply;
	int error;

	if (!packet->first.outside || !leads_to_pod(packet) || !untranslated_take())
		return -ENOSPC;
	entry.created = entry.seen = bpf_ktime_get_coarse_ns();
	entry.shortcut = packet->first.ends.backend;
	flow_reverse(&entry.after, &packet->flow, 0);
	flow_reverse(&reply, &packet->flow, HOOK_EGRESS);
	error = connection_take(&reply, &entry);
	if (!error) {
		entry.reply = 0;
		entry.after = packet->after;
		entry.shortcut = packet->first.ends.client;
		error = connection_take(&packet->flow, &entry);
		if (error)
			entry_delete(&reply);
	}
	if (error) {
		half_open_release();
		untranslated_release();
	}
	return error;
}

/*
 * Begin an untranslated connection, if that is possible: then its first packet goes on as a later
 * one does.
 */
static inline int untranslated_first(struct __sk_buff *skb, struct packet *packet)
{
	int error = untranslated_open(skb, packet);

	if (error && error != -EEXIST) {
		direct_flow_note(&packet->flow);
		return TC_ACT_UNSPEC;
	}
	packet->forward.hop = 0;
	return tail_call(skb, STEP_ESTABLISHED);
}
