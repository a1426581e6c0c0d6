/*
 * STEP_MASQUERADE: the first packet of a masqueraded connection leaves. The connection gets its
 * source address and port only here, because only here its interface is known. The address is that
 * of the kernel's MASQUERADE.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/fragments.h"
#include "maps/interfaces.h"
#include "maps/masquerade_choices.h"
#include "maps/settings.h"
#include "path/conn/observe.h"
#include "path/conn/source_ports.h"
#include "path/fast/route.h"
#include "path/fragments.h"
#include "path/packet.h"
#include "path/tail_calls.h"

/*
 * Find the next hop of an IPv4 packet that leaves by `out`: a router, or the packet's destination.
 * (An IPv6 router of an IPv4 route does not count.)
 */
static inline void next_hop_find(struct __sk_buff *skb, struct packet *packet, __u32 out,
				 struct address *hop)
{
	struct bpf_fib_lookup *route = route_of(packet);
	__u32 came_by = skb->ingress_ifindex;
	long result;

	*hop = packet->flow.destination;
	__builtin_memset(route, 0, sizeof(*route));
	route_ask(route, &packet->flow, true, came_by ? came_by : out, 0, 0);
	/*
	 * A packet of this node's own sockets has no other interface than the one where it leaves.
	 */
	result = bpf_fib_lookup(skb, route, sizeof(*route), came_by ? 0 : BPF_FIB_LOOKUP_OUTPUT);
	if (result != BPF_FIB_LKUP_RET_SUCCESS && result != BPF_FIB_LKUP_RET_NO_NEIGH &&
	    result != BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return;
	if (route->family == AF_INET && route->ifindex == out)
		address_from_v4(hop, route->ipv4_dst);
}

/* Find the address. False if the interface has none of the family. */
static inline bool masquerade_address(struct __sk_buff *skb, struct packet *packet,
				      struct address *address)
{
	__u32 ifindex = skb->ifindex;
	struct interface *entry = interfaces.lookup(&ifindex);
	struct address hop;

	if (!entry)
		return false;
	*address = packet->v4 ? entry->v4 : entry->v6;
	if (packet->v4 && entry->choices_v4) {
		next_hop_find(skb, packet, entry->choices_v4, &hop);
		masquerade_choose(entry->choices_v4, &hop, address);
	} else if (!packet->v4 && entry->choices_v6) {
		masquerade_choose(entry->choices_v6, &packet->flow.destination, address);
	}
	return !address_is_zero(address);
}

/*
 * Choose source address and port for a masqueraded connection when its first packet leaves.
 * -EAGAIN: no port was found in this round. After another error the packet must be dropped. Two
 * packets at once, on two CPUs, find the same port: their searches begin at the same port.
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
	entry.fin_sent = pending->fin_received;
	entry.fin_received = pending->fin_sent;
	entry.reset = pending->reset;
	entry.client_first = pending->client_first;
	/* Late packets of both sides must not establish anew what is closed. */
	entry.established = connection_closed(pending);
	flow_reverse(&entry.after, &packet->flow, 0);
	if (!packet->search.round)
		masquerade_search_begin(&packet->search, settings, &wire, pending->tick);
	error = -EEXIST;
	if (packet->search.shortage != SHORTAGE_EXHAUSTED)
		error = masquerade_port_take(skb, settings, &packet->search, &wire, &entry);
	if (error == -EEXIST)
		COUNT(dropped__masquerade_ports_exhausted);
	if (error)
		return error;
	pending->after = wire;
	pending->masquerade_pending = 0;
	pending->established = entry.established;
	return 0;
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
		/* Its later fragments must not leave as they are: they come here, too. */
		if (packet->fragment == FRAGMENT_FIRST)
			fragment_note(packet, FRAGMENT_TRANSLATED);
		observe_unmasqueraded(&packet->flow, connection);
		return TC_ACT_SHOT;
	}
}
