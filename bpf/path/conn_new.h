/*
 * The first packet of a connection, in the order of what happens to it: whether it concerns a
 * Service at all, which backend it goes to, how the connection will travel, and the entries for
 * its later packets. Two programs do this, `step_first` and `step_open`.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/scratch.h"
#include "lib/tail_calls.h"
#include "lib/tcp_options.h"
#include "lib/verifier.h"
#include "lib/wire.h"
#include "maps/backend_counters.h"
#include "maps/backends.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/destinations.h"
#include "maps/endpoints.h"
#include "maps/fast_flows.h"
#include "maps/fragments.h"
#include "maps/frontends.h"
#include "maps/half_open.h"
#include "maps/hardware_addresses.h"
#include "maps/settings.h"
#include "path/backend_select.h"
#include "path/client.h"
#include "path/conn_leave.h"
#include "path/conn_unknown.h"
#include "path/conn_untranslated.h"
#include "path/echo.h"
#include "path/fast_path.h"
#include "path/fast_path_direct.h"
#include "path/local_listener.h"
#include "path/local_opening.h"
#include "path/netfilter_ports.h"
#include "path/passes.h"
#include "path/pod_netns.h"
#include "path/snat_ports.h"

/* True if there may be something to do for a packet of no known connection. */
static inline bool conn_new_possible(const struct __sk_buff *skb, const struct settings *settings,
				     const struct packet *packet, __u8 hook)
{
	if (packet->fragment == FRAGMENT_LATER || address_is_v4_loopback(&packet->flow.destination))
		return false;
	if (packet->reuse || settings->settling)
		return true;
	if (hook == HOOK_EGRESS)
		return unknown_marked(skb) ||
		       (opened_here(skb, packet->tcp_flags) &&
			destination_may_be_frontend(&packet->flow.destination)) ||
		       netfilter_port_possible(skb, settings, packet);
	if (packet->flow.protocol == PROTO_TCP && !tcp_opens(packet->tcp_flags))
		return conn_unknown_possible(packet);
	return destination_may_be_known(&packet->flow);
}

/* Decide how a connection through a frontend will travel: masqueraded or not, and by which path. */
static inline void conn_new_plan(struct __sk_buff *skb, const struct settings *settings,
				 struct packet *packet)
{
	struct choice *choice = &packet->choice;

	packet->after = packet->flow;
	packet->after.hook = 0;
	packet->after.destination = choice->backend.address;
	packet->after.destination_port = choice->backend.port;
	if (choice->backend.hairpin &&
	    address_equal(&packet->flow.source, &choice->backend.address))
		choice->masquerade = 1;
	if (!fast_path_decide(skb, settings, packet))
		packet->ends.client = packet->ends.backend = packet->hop = packet->outside = 0;
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
	entry->seen = entry->created;
	entry->service = choice->service;
	entry->counters = choice->backend.counters;
	entry->reply = 1;
	entry->shortcut = packet->ends.backend;
	entry->outside = packet->outside;
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
	entry.shortcut = packet->ends.client;
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
	if (entry.masquerade && !masquerade_request(after, &entry))
		return -ENOSPC;
	load_enter(packet->flow.protocol, &entry);
	error = connection_take(&packet->flow, &entry);
	if (error)
		load_leave(&entry);
	if (error == -EEXIST)
		conn_new_undo(after, &entry);
	else if (error)
		COUNT(dropped__connections_full);
	return error;
}

/*
 * True if a packet must be dropped because connections of an older build are still being copied,
 * and it may belong to one of those. If it passed untranslated, its receiver would answer with a
 * reset. A dropped packet is sent again.
 */
static inline bool conn_new_hold_back(const struct settings *settings, struct packet *packet)
{
	struct frontend_key key = {};

	if (!settings->settling || packet->flow.protocol != PROTO_TCP)
		return false;
	if (endpoint_known(&packet->flow.source, packet->flow.source_port, PROTO_TCP) ||
	    endpoint_known(&packet->flow.destination, packet->flow.destination_port, PROTO_TCP))
		return true;
	key.address = packet->flow.destination;
	key.port = packet->flow.destination_port;
	key.protocol = PROTO_TCP;
	return packet->flow.hook == HOOK_INGRESS && frontend_find(&key);
}

/* Return the verdict on a packet that belongs to no known connection; see backend_select.h. */
static inline int conn_new_verdict(struct __sk_buff *skb, const struct settings *settings,
				   struct packet *packet)
{
	struct frontend_key *key = &packet->asked;
	int verdict;

	if (packet->echo)
		return echo_verdict(skb, packet);
	if (packet->flow.hook == HOOK_EGRESS && !settings->settling && !unknown_marked(skb))
		return opened_here(skb, packet->tcp_flags) ?
			       local_opening_verdict(settings, packet) :
			       VERDICT_NONE;
	if (packet->flow.hook == HOOK_EGRESS ||
	    (packet->flow.protocol == PROTO_TCP && !tcp_opens(packet->tcp_flags)))
		return conn_new_hold_back(settings, packet) ? VERDICT_DROP :
							      conn_unknown_verdict(skb, packet);
	if (packet->flow.protocol == PROTO_SCTP && !sctp_opens(skb, packet->l4))
		return conn_unknown_verdict(skb, packet);
	if (!destination_may_be_frontend(&packet->flow.destination))
		return conn_new_direct(skb, settings, packet);
	packet->client.address = packet->flow.source;
	packet->client.port = packet->flow.source_port;
	packet->client.class = client_class(settings, skb->ifindex, &packet->client.address);
	key->address = packet->flow.destination;
	key->port = packet->flow.destination_port;
	key->protocol = packet->flow.protocol;
	key->zero = 0;
	AS_IN_MEMORY();
	__builtin_memset(&packet->choice, 0, sizeof(packet->choice));
	packet->verdict = choose_for_packet(key, &packet->client, &packet->choice);
	AS_IN_MEMORY();
	verdict = packet->verdict;
	if (verdict != VERDICT_NONE && packet->flow.hook == HOOK_INGRESS &&
	    cluster_ip_is_held(&packet->flow.destination) && node_listens(skb, &packet->flow))
		verdict = VERDICT_NONE;
	choice_refused(&packet->choice, verdict);
	if (verdict == VERDICT_NONE)
		return conn_new_direct(skb, settings, packet);
	if (verdict == VERDICT_DNAT)
		netns_learn(skb, packet, false);
	return verdict;
}

/*
 * Return the verdict on a frame for another machine, which the port of a bridge passes on: between
 * pods it may be to a backend's own address. A frontend in it is of no concern to this node.
 */
static inline int conn_new_switched(struct __sk_buff *skb, const struct settings *settings,
				    struct packet *packet)
{
	if (packet->echo || (packet->flow.protocol == PROTO_TCP && !tcp_opens(packet->tcp_flags)) ||
	    (packet->flow.protocol == PROTO_SCTP && !sctp_opens(skb, packet->l4)))
		return VERDICT_NONE;
	return conn_new_direct(skb, settings, packet);
}

/*
 * Remove the entries of a connection whose flow begins again with a SYN: it is closed, or its
 * backend has not answered and is in quarantine. A SYN from the
 * client opens a new connection: its backend is chosen at ingress, and at egress it passes as
 * ingress has translated it. A SYN from the backend belongs to no frontend.
 */
static inline void conn_new_clear(struct packet *packet)
{
	struct connection *connection = connection_find(&packet->flow);
	struct counters *counted = counters_get();

	if (!connection || !counted) {
		untranslated_clear(packet);
		return;
	}
	counted->connections_reopened += packet->reuse & REUSE_CLOSED;
	packet->after = connection->after;
	connection_remove(&packet->flow, connection);
	if (packet->flow.hook == HOOK_INGRESS)
		masquerade_remove(&packet->after);
}

/*
 * True if a packet that is not translated begins a flow between pods that the stack serves. (While
 * connections of an older build are copied, it may be of one that is not there yet.)
 */
static inline bool begins_untranslated(const struct settings *settings, const struct packet *packet)
{
	return !settings->fast_path && !settings->settling && packet->flow.hook == HOOK_INGRESS &&
	       !packet->passes_egress && tcp_opens(packet->tcp_flags) &&
	       ends_in_pod_range(settings, &packet->flow, packet->v4);
}

/* Let a first packet pass that is not translated, by the fast path or the stack. */
static inline int first_packet_pass(struct __sk_buff *skb, const struct settings *settings,
				    struct packet *packet)
{
	int way;

	if (begins_untranslated(settings, packet))
		fast_flow_note_untranslated(&packet->flow);
	way = fast_path_direct(skb, settings, packet);
	/* A fast flow is remembered by that: fast_flow_exists(). */
	if (way == TC_ACT_UNSPEC && packet->direct)
		direct_flow_note(&packet->flow);
	return way;
}

/* The step of a first packet whose backend is chosen. */
static inline enum step opening_step(const struct choice *choice)
{
	return choice->watched == WATCHED_MAY_TRY ? STEP_TRIAL : STEP_OPEN;
}

/* Decide on a first packet: let it pass, refuse or drop it, or go on to open its connection. */
static inline int first_packet(struct __sk_buff *skb, const struct settings *settings,
			       struct packet *packet)
{
	int verdict;

	packet->untranslated = packet->direct = 0;
	if (packet->reuse && !(packet->reuse & REUSE_CLEARED)) {
		/* Then begin anew: the verifier would follow all of the rest once more. */
		conn_new_clear(packet);
		packet->reuse |= REUSE_CLEARED;
		return tail_call(skb, STEP_FIRST);
	}
	if (packet->flow.hook == HOOK_INGRESS && !frame_is_ours(skb))
		verdict = conn_new_switched(skb, settings, packet);
	else
		verdict = conn_new_verdict(skb, settings, packet);
	if (verdict == VERDICT_NONE && packet->flow.hook == HOOK_EGRESS && !packet->echo &&
	    !packet->reuse && netfilter_port_collides(skb, settings, packet))
		return netfilter_port_change(skb, packet);
	if (verdict == VERDICT_ECHO)
		return tail_call(skb, STEP_ECHO);
	if (verdict == VERDICT_SCHEDULE)
		return tail_call(skb, STEP_SCHEDULE);
	if (verdict == VERDICT_DNAT)
		return tail_call(skb, opening_step(&packet->choice));
	fragment_passed(packet);
	if (verdict == VERDICT_NONE)
		return first_packet_pass(skb, settings, packet);
	if (verdict == VERDICT_REJECT || verdict == VERDICT_RESET)
		return tail_call(skb, STEP_REJECT);
	return TC_ACT_SHOT;
}

/*
 * Find the place of a first packet's backend, if the address that it is for keeps its backends, and
 * whether it spills over. Then begin anew with the packet. (Here the verifier follows the comparison
 * once.)
 */
static inline int first_packet_schedule(struct __sk_buff *skb, struct packet *packet)
{
	struct frontend_key asked = {
		.address = packet->flow.destination,
		.port = packet->flow.destination_port,
		.protocol = packet->flow.protocol,
	};

	struct schedule_work *work = schedule_work_get();

	if (work)
		spill_decide(work);
	schedule_locality(&asked, packet->client.class, true);
	return tail_call(skb, STEP_FIRST);
}

/* Have a first packet try a backend that is on trial, if none other does. */
static inline int first_packet_try(struct __sk_buff *skb, struct packet *packet)
{
	struct frontend_key asked = {
		.address = packet->flow.destination,
		.port = packet->flow.destination_port,
		.protocol = packet->flow.protocol,
	};

	choose_trial(&asked, &packet->client, &packet->choice);
	return tail_call(skb, STEP_OPEN);
}

/* Open the connection of a first packet, and translate the packet. */
static inline int first_packet_open(struct __sk_buff *skb, const struct settings *settings,
				    struct packet *packet)
{
	enum forwarding via = BY_STACK;

	conn_new_plan(skb, settings, packet);
	if (packet->untranslated)
		return tail_call(skb, STEP_UNTRANSLATED);
	switch (conn_new_open(skb, settings, packet, &packet->choice)) {
	case 0:
		break;
	case -EAGAIN:
		return tail_call(skb, STEP_OPEN);
	case -EEXIST:
		COUNT(connections_raced);
		packet->hop = 0; /* it may have another backend, and so another route */
		return tail_call(skb, STEP_ESTABLISHED);
	default:
		return TC_ACT_SHOT;
	}
	pass_note(skb, settings, &packet->after);
	/* A direct flow whose port had to change belongs to no service. */
	if (packet->choice.service) {
		choice_made(&packet->choice, &packet->client);
		count_packet(packet->choice.backend.counters, false, skb->len);
	}
	if (packet->ends.client)
		via = packet->choice.masquerade ? BY_FAST_PATH_TWICE : BY_FAST_PATH;
	return leave_rare(skb, packet, via);
}
