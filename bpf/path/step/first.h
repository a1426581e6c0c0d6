/*
 * STEP_FIRST: a packet of no known connection, or a SYN that opens one anew. Here is decided
 * whether it concerns a Service at all, and which backend it goes to. STEP_OPEN then opens its
 * connection.
 */
#pragma once

#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/verifier.h"
#include "lib/wire.h"
#include "maps/backends.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/destinations.h"
#include "maps/direct_flows.h"
#include "maps/endpoints.h"
#include "maps/fast_flows.h"
#include "maps/frontends.h"
#include "maps/hardware_addresses.h"
#include "maps/settings.h"
#include "path/client.h"
#include "path/conn/state.h"
#include "path/fast/direct.h"
#include "path/first/direct.h"
#include "path/first/echo.h"
#include "path/first/local_listener.h"
#include "path/first/local_opening.h"
#include "path/first/netfilter_ports.h"
#include "path/first/unknown.h"
#include "path/fragments.h"
#include "path/marks.h"
#include "path/packet.h"
#include "path/pod_netns.h"
#include "path/schedule/backend_select.h"
#include "path/tail_calls.h"

/*
 * True if the packet belongs to the build that is being replaced, whatever its addresses are
 * (settings.takeover): it may be of a connection that is not copied yet.
 */
static inline bool is_for_replaced(const struct settings *settings, const struct packet *packet)
{
	return settings->takeover &&
	       (packet->flow.hook == HOOK_EGRESS ||
		(packet->flow.protocol == PROTO_TCP && !tcp_opens(packet->tcp_flags)));
}

/*
 * True if a packet must be dropped because connections of an older build are still being copied,
 * the programs of that build cannot be called, and the packet may belong to one of them. If it
 * passed untranslated, its receiver would answer with a reset. A dropped packet is sent again.
 */
static inline bool conn_new_hold_back(const struct settings *settings, struct packet *packet)
{
	struct frontend_key key = {};

	if (!settings->takeover || packet->flow.protocol != PROTO_TCP)
		return false;
	if (endpoint_known(&packet->flow.source, packet->flow.source_port, PROTO_TCP) ||
	    endpoint_known(&packet->flow.destination, packet->flow.destination_port, PROTO_TCP))
		return true;
	key.address = packet->flow.destination;
	key.port = packet->flow.destination_port;
	key.protocol = PROTO_TCP;
	return packet->flow.hook == HOOK_INGRESS && frontend_find(&key);
}

/* Return the verdict (schedule/backend_select.h) on a packet that belongs to no connection. */
static inline int conn_new_verdict(struct __sk_buff *skb, const struct settings *settings,
				   struct packet *packet)
{
	struct frontend_key *key = &packet->first.asked;
	int verdict;

	if (packet->echo)
		return echo_verdict(skb, packet);
	if (packet->flow.hook == HOOK_EGRESS && !settings->takeover && !unknown_marked(skb))
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
	packet->first.client.address = packet->flow.source;
	packet->first.client.port = packet->flow.source_port;
	packet->first.client.class =
		client_class(settings, skb->ifindex, &packet->first.client.address);
	key->address = packet->flow.destination;
	key->port = packet->flow.destination_port;
	key->protocol = packet->flow.protocol;
	key->zero = 0;
	AS_IN_MEMORY();
	__builtin_memset(&packet->first.choice, 0, sizeof(packet->first.choice));
	packet->first.verdict =
		choose_for_packet(key, &packet->first.client, &packet->first.choice);
	AS_IN_MEMORY();
	verdict = packet->first.verdict;
	if (verdict != VERDICT_NONE && packet->flow.hook == HOOK_INGRESS &&
	    cluster_ip_is_held(&packet->flow.destination) && node_listens(skb, &packet->flow))
		packet->first.verdict = verdict = VERDICT_NONE;
	choice_refused(&packet->first.choice, verdict);
	if (verdict == VERDICT_NONE)
		return conn_new_direct(skb, settings, packet);
	if (verdict == VERDICT_DNAT)
		netns_learn(skb, packet, false);
	return verdict;
}

/*
 * Return the verdict on a frame for another machine, which the port of a bridge passes on. Between
 * pods it may go to a backend's own address. This node does not handle frontends in it.
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
 * Remove the entries of a connection that a SYN opens anew: the connection is closed, or its
 * backend is in quarantine and has not answered. A SYN from the client opens a new connection:
 * ingress chooses its backend, and at egress the SYN passes as ingress has translated it. A SYN
 * from the backend belongs to no frontend. Return the step that goes on.
 */
static inline enum step conn_new_clear(struct packet *packet)
{
	struct connection *connection = connection_find(&packet->flow);
	struct counters *counted = counters_get();

	if (!connection || !counted) {
		untranslated_clear(packet);
		return STEP_FIRST;
	}
	if (packet->reuse & REUSE_CLOSED && attempt_goes_on(connection)) {
		connection_reopen(&packet->flow, connection);
		return STEP_ESTABLISHED;
	}
	counted->connections_reopened += packet->reuse & REUSE_CLOSED;
	packet->after = connection->after;
	connection_remove(&packet->flow, connection);
	if (packet->flow.hook == HOOK_INGRESS)
		masquerade_remove(&packet->after);
	return STEP_FIRST;
}

/*
 * True if a packet begins a flow between pods that is not translated and takes the stack. (While
 * connections of an older build are copied, the packet may be of a connection that is not copied
 * yet.)
 */
static inline bool begins_untranslated(const struct settings *settings, const struct packet *packet)
{
	return !settings->fast_path && !settings->takeover && packet->flow.hook == HOOK_INGRESS &&
	       !packet->passes_egress && tcp_opens(packet->tcp_flags) &&
	       ends_in_pod_range(settings, &packet->flow, packet->v4);
}

/* Let a first packet pass that is not translated, by the fast path or by the stack. */
static inline int first_packet_pass(struct __sk_buff *skb, const struct settings *settings,
				    struct packet *packet)
{
	int way;

	if (begins_untranslated(settings, packet))
		fast_flow_note_untranslated(&packet->flow);
	way = fast_path_direct(skb, settings, packet);
	/* fast_flow_exists() remembers a fast flow. */
	if (way == TC_ACT_UNSPEC && packet->first.direct)
		direct_flow_note(&packet->flow);
	return way;
}

/* Return the step of a first packet that has a backend. */
static inline enum step opening_step(const struct choice *choice)
{
	return choice_is_final(choice) ? STEP_OPEN : STEP_REVISE;
}

/* Decide on a first packet: let it pass, refuse or drop it, or go on to open its connection. */
static inline int first_packet(struct __sk_buff *skb, const struct settings *settings,
			       struct packet *packet)
{
	int verdict;

	packet->first.untranslated = packet->first.direct = 0;
	packet->first.verdict = VERDICT_NONE;
	if (packet->reuse && !(packet->reuse & REUSE_CLEARED)) {
		/*
		 * Then begin this step anew: otherwise the verifier would follow all of the rest
		 * once more.
		 */
		enum step next = conn_new_clear(packet);

		packet->reuse |= REUSE_CLEARED;
		return tail_call(skb, next);
	}
	if (is_for_replaced(settings, packet))
		tail_call_replaced(skb, packet);
	if (packet->flow.hook == HOOK_INGRESS && !frame_is_ours(skb))
		verdict = conn_new_switched(skb, settings, packet);
	else
		verdict = conn_new_verdict(skb, settings, packet);
	/* It may be an answer of UDP or SCTP. */
	if (verdict == VERDICT_NONE && settings->takeover)
		tail_call_replaced(skb, packet);
	if (verdict == VERDICT_NONE && packet->flow.hook == HOOK_EGRESS && !packet->echo &&
	    !packet->reuse && netfilter_port_collides(skb, settings, packet))
		return netfilter_port_change(skb, packet);
	if (verdict == VERDICT_ECHO)
		return tail_call(skb, STEP_ECHO);
	if (verdict == VERDICT_SCHEDULE)
		return tail_call(skb, STEP_SCHEDULE);
	if (verdict == VERDICT_DNAT)
		return tail_call(skb, opening_step(&packet->first.choice));
	fragment_passed(packet);
	if (verdict == VERDICT_NONE)
		return first_packet_pass(skb, settings, packet);
	/* A packet that is dropped by a verdict goes there, too: that program tells of it. */
	if (verdict == VERDICT_REJECT || verdict == VERDICT_RESET || packet->first.verdict)
		return tail_call(skb, STEP_REJECT);
	return TC_ACT_SHOT;
}
