/*
 * STEP_OPEN: a first packet that has a backend. Its connection gets the entries for the packets
 * that follow.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/tcp_options.h"
#include "lib/wire.h"
#include "maps/backend_counters.h"
#include "maps/backends.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/fast_flows.h"
#include "maps/half_open.h"
#include "maps/settings.h"
#include "path/conn/masquerade.h"
#include "path/conn/observe.h"
#include "path/conn/source_ports.h"
#include "path/fast/fast_path.h"
#include "path/marks.h"
#include "path/packet.h"
#include "path/schedule/backend_select.h"
#include "path/tail_calls.h"

/*
 * Decide how a connection through a frontend will travel: masqueraded or not, by the stack or by
 * the fast path.
 */
static inline void conn_new_plan(struct __sk_buff *skb, const struct settings *settings,
				 struct packet *packet)
{
	struct choice *choice = &packet->first.choice;

	packet->after = packet->flow;
	packet->after.hook = 0;
	packet->after.destination = choice->backend.address;
	packet->after.destination_port = choice->backend.port;
	if (choice->backend.hairpin &&
	    address_equal(&packet->flow.source, &choice->backend.address))
		choice->masquerade = 1;
	if (!fast_path_decide(skb, settings, packet))
		packet->first.ends.client = packet->first.ends.backend = packet->forward.hop =
			packet->first.outside = 0;
}

/* Remove what conn_new_open() has written, but for the entry of the client's packets. */
static inline void conn_new_undo(const struct flow *after, const struct connection *entry)
{
	struct flow reply;

	if (entry->masquerade)
		masquerade_remove(after);
	flow_reverse(&reply, after, HOOK_EGRESS);
	entry_delete(&reply);
	if (entry->held)
		half_open_release();
}

/* A translated connection has the 5-tuples, before and after, that a direct flow may have had. */
static inline void fast_flows_take_over(const struct settings *settings,
					const struct packet *packet)
{
	fast_flow_remove(&packet->after);
	/* The frontend's address may have been any other one in the range of pods until now. */
	if (in_pod_range(settings, &packet->flow.destination, packet->v4))
		fast_flow_remove(&packet->flow);
}

/* Write the entry of the server's packets, and keep it in `entry`. Errors: routed_flow_take(). */
static inline int conn_new_reply(const struct settings *settings, struct packet *packet,
				 const struct choice *choice, struct connection *entry)
{
	struct flow *after = &packet->after;
	int error;

	entry->created = bpf_ktime_get_coarse_ns();
	entry->observed = packet->first.observed;
	entry->seen = entry->created;
	entry->service = choice->service;
	entry->counters = choice->backend.counters;
	entry->reply = 1;
	entry->shortcut = packet->first.ends.backend;
	entry->outside = packet->first.outside;
	entry->watched = choice->watched;
	entry->held = half_open_take();
	flow_reverse(&entry->after, &packet->flow, 0);
	error = routed_flow_take(settings, &packet->search, after, entry);
	if (error && entry->held)
		half_open_release();
	if (!error && after->source_port != packet->flow.source_port)
		COUNT(source_ports_changed);
	return error;
}

/*
 * Write the entries of both directions, and of the masquerade if there is to be one. -EEXIST if
 * another packet of the client has opened the connection meanwhile, -EAGAIN if the search for a
 * port is to go on; after another error the packet must be dropped.
 */
static inline int conn_new_open(struct __sk_buff *skb, const struct settings *settings,
				struct packet *packet, const struct choice *choice)
{
	struct flow *after = &packet->after;
	struct connection entry = {};
	int error;

	error = conn_new_reply(settings, packet, choice, &entry);
	if (error)
		return error;
	entry.reply = 0;
	entry.after = *after;
	entry.masquerade = choice->masquerade;
	entry.shortcut = packet->first.ends.client;
	entry.counted = choice->counts;
	if (packet->flow.protocol == PROTO_TCP)
		entry.window_shift = tcp_window_shift(skb, packet->l4);
	/*
	 * The entry that packets of the client look up is the last: another packet that finds it
	 * finds all of the connection. On failure the others stay alone; the next flow that needs
	 * their keys takes them over.
	 */
	masquerade_remove(after);
	fast_flows_take_over(settings, packet);
	if (entry.masquerade && !masquerade_request(after, &entry, false))
		return -ENOSPC;
	load_enter(packet->flow.protocol, &entry);
	error = connection_take(&packet->flow, &entry);
	if (error)
		load_leave(&entry);
	if (error == -EEXIST)
		conn_new_undo(after, &entry);
	else if (error)
		count_no_room(error);
	return error;
}

/*
 * Return why a connection cannot be opened. (By the search in memory: the verifier would follow the
 * number of an error back through all of the search.)
 */
static inline __u8 opening_failure(const struct packet *packet)
{
	return packet->search.round < SOURCE_PORT_ROUNDS ? EVENT_REASON_CONNECTIONS_FULL :
							   EVENT_REASON_SOURCE_PORTS_EXHAUSTED;
}

/* Open the connection of a first packet, and translate the packet. */
static inline int first_packet_open(struct __sk_buff *skb, const struct settings *settings,
				    struct packet *packet)
{
	enum forwarding via = BY_STACK;

	observe_opening(packet);
	conn_new_plan(skb, settings, packet);
	if (packet->first.untranslated)
		return tail_call(skb, STEP_UNTRANSLATED);
	switch (conn_new_open(skb, settings, packet, &packet->first.choice)) {
	case 0:
		break;
	case -EAGAIN:
		return tail_call(skb, STEP_OPEN);
	case -EEXIST:
		COUNT(connections_raced);
		packet->forward.hop = 0; /* it may have another backend, and so another route */
		return tail_call(skb, STEP_ESTABLISHED);
	default:
		observe_failure(packet, EVENT_DROPPED, opening_failure(packet));
		return TC_ACT_SHOT;
	}
	pass_note(skb, settings, &packet->after, packet->first.choice.masquerade ? 0 : PASS_WHOLE);
	/* A direct flow that only got another port belongs to no service. */
	if (packet->first.choice.service) {
		choice_made(&packet->first.choice, &packet->first.client);
		count_packet(packet->first.choice.backend.counters, false, skb->len);
		observe_made(packet);
	}
	if (packet->first.ends.client)
		via = packet->first.choice.masquerade ? BY_FAST_PATH_TWICE : BY_FAST_PATH;
	return leave_rare(skb, packet, via);
}
