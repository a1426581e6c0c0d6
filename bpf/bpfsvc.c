/*
 * The walk of a packet. Every interface runs `ingress` on what it receives and `egress` on what it
 * sends; in between the kernel routes an ordinary packet from client to backend. Sockets of the
 * node itself take the shorter way at the end of this file.
 */
#include "protocols.h"
#include "address.h"
#include "flow.h"
#include "settings.h"
#include "counters.h"
#include "filter.h"
#include "names.h"
#include "node.h"
#include "frontends.h"
#include "sources.h"
#include "backends.h"
#include "affinity.h"
#include "choice.h"
#include "connections.h"
#include "direct.h"
#include "ports.h"
#include "packet.h"
#include "fragments.h"
#include "unusual.h"
#include "steps.h"
#include "crc32c.h"
#include "rewrite.h"
#include "quotes.h"
#include "reset.h"
#include "reject.h"
#include "icmp.h"
#include "sockets.h"
#include "collect.h"
#include "decide.h"

/*
 * See to it that the packets of `entry`, a forward entry, are masqueraded when they leave. False when
 * there is no room to say so.
 */
static inline bool note_masquerade(const struct flow *after, const struct connection *entry)
{
	struct connection pending = *entry;
	struct flow routed = *after;

	routed.hook = HOOK_EGRESS;
	if (connection_find(&routed))
		return true;
	pending.counters = 0;
	pending.replied = pending.established = 0;
	pending.fin_sent = pending.fin_received = pending.reset = 0;
	pending.masquerade_pending = 1;
	pending.held = half_open_take();
	if (!connection_note(&routed, &pending))
		return true;
	if (pending.held)
		half_open_release();
	COUNT(dropped__connections_full);
	return false;
}

/*
 * The first packet through a frontend: write both directions, and what the way out has to do. False
 * when the packet must not pass.
 */
static inline bool open_connection(const struct settings *settings, struct packet *packet,
				   const struct choice *choice)
{
	struct flow *after = &packet->after;
	struct connection entry = {};

	*after = packet->flow;
	after->hook = 0;
	after->destination = choice->backend.address;
	after->destination_port = choice->backend.port;

	entry.created = bpf_ktime_get_coarse_ns();
	entry.seen = entry.created;
	entry.service = choice->service;
	entry.counters = choice->backend.counters;
	entry.reply = 1;
	entry.held = half_open_take();
	flow_reverse(&entry.after, &packet->flow, 0);
	if (!routed_flow_take(settings, after, &entry)) {
		if (entry.held)
			half_open_release();
		return false;
	}

	entry.reply = 0;
	entry.after = *after;
	entry.masquerade = choice->masquerade ||
			   (choice->backend.hairpin &&
			    address_equal(&packet->flow.source, &choice->backend.address));
	/* What stands without its other half is given back to whoever asks next. */
	if (connection_note(&packet->flow, &entry)) {
		COUNT(dropped__connections_full);
		return false;
	}
	masquerade_forget(after);
	if (entry.masquerade && !note_masquerade(after, &entry))
		return false;
	return true;
}

/*
 * A first packet to a backend's own address. It stays as it is, unless a connection through a
 * frontend already owns its 5-tuple; then it gets another source port.
 */
static inline int direct_flow(struct packet *packet)
{
	struct connection *owner;
	struct flow reply;

	flow_reverse(&reply, &packet->flow, HOOK_EGRESS);
	owner = connection_find(&reply);
	if (owner && connection_closed(owner)) {
		/* The leftover of a closed connection must not touch this one's replies. */
		connection_remove(&reply, owner);
		masquerade_forget(&packet->flow);
		owner = NULL;
	}
	if (!owner) {
		if (endpoint_known(&packet->flow.destination, packet->flow.destination_port,
				   packet->flow.protocol))
			direct_flow_note(&packet->flow);
		return VERDICT_NONE;
	}
	__builtin_memset(&packet->choice, 0, sizeof(packet->choice));
	packet->choice.backend.address = packet->flow.destination;
	packet->choice.backend.port = packet->flow.destination_port;
	return VERDICT_DNAT;
}

/*
 * While connections of an older build are still being carried over, a packet may belong to one that
 * is not here yet. Passed on as it is, it would be answered with a reset; held back, it is sent again.
 */
static inline bool hold_back(const struct settings *settings, struct packet *packet)
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

/* A packet that belongs to no known connection. */
static inline int first_packet(struct __sk_buff *skb, const struct settings *settings,
			       struct packet *packet)
{
	struct frontend_key key = {};
	int verdict;

	if (packet->echo) {
		verdict = guard(&packet->flow.destination);
		count_refusal(verdict);
		return verdict;
	}
	if (packet->flow.hook == HOOK_EGRESS ||
	    (packet->flow.protocol == PROTO_TCP && !tcp_opens(packet->tcp_flags)))
		return hold_back(settings, packet) ? VERDICT_DROP : VERDICT_NONE;
	if (packet->flow.protocol == PROTO_SCTP && !sctp_opens(skb, packet->l4))
		return VERDICT_NONE;
	packet->client.address = packet->flow.source;
	packet->client.class = client_class(settings, skb->ifindex, &packet->client.address);
	key.address = packet->flow.destination;
	key.port = packet->flow.destination_port;
	key.protocol = packet->flow.protocol;
	__builtin_memset(&packet->choice, 0, sizeof(packet->choice));
	verdict = choose_backend(&key, &packet->client, &packet->choice);
	count_refusal(verdict);
	return verdict == VERDICT_NONE ? direct_flow(packet) : verdict;
}

/* The first packet of a masqueraded connection leaves: by which interface is known only now. */
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
	if (!masquerade_address(skb->ifindex, packet->v4, &wire.source)) {
		COUNT(dropped__no_masquerade_address);
		return -1;
	}
	entry.created = pending->created;
	entry.seen = pending->seen;
	entry.service = pending->service;
	entry.reply = 1;
	entry.held = pending->held;
	flow_reverse(&entry.after, &packet->flow, 0);
	error = masquerade_port_take(skb, settings, &packet->search, &wire, &entry);
	if (error)
		return error;
	pending->after = wire;
	pending->masquerade_pending = 0;
	return 0;
}

static inline int rewritten(int error)
{
	if (!error)
		return TC_ACT_UNSPEC;
	COUNT(dropped__rewrite_failed);
	return TC_ACT_SHOT;
}

static inline int finish(struct __sk_buff *skb, struct packet *packet)
{
	if (packet->fragment || packet->flow.protocol == PROTO_SCTP)
		return step(skb, STEP_REWRITE);
	return rewritten(rewrite(skb, packet));
}

/* A packet of a known connection: bring its state forward and make it what it must become. */
static inline int next_packet(struct __sk_buff *skb, struct packet *packet,
			      struct connection *connection)
{
	packet->after = connection->after;
	if (connection->counters)
		count_packet(connection->counters, connection->reply, skb->len);
	if (packet->fragment == FRAGMENT_LATER)
		return finish(skb, packet);
	connection_track(&packet->flow, connection, packet->tcp_flags);
	if (!connection->established &&
	    !connection_progress(&packet->flow, connection, packet->tcp_flags))
		return TC_ACT_SHOT;
	return finish(skb, packet);
}

/*
 * Whether there is more to do than next_packet(): a port to choose, a pair to move, or, for the first
 * packet after a pause, to see whether what it needs on the way out was collected meanwhile.
 */
static inline bool needs_care(const struct connection *connection, __u8 hook)
{
	if (!connection->established && (!connection->held || connection->masquerade_pending))
		return true;
	return hook == HOOK_INGRESS && connection->masquerade &&
	       connection_idle(connection, bpf_ktime_get_coarse_ns()) > NS_PER_SECOND;
}

/*
 * A SYN on a closed connection. From the client it is a new one, with a choice of its own, made as
 * it enters; on its way out it goes on as it was translated there. From the backend it is nothing
 * that a frontend knows of. Either way the leftover goes.
 */
static inline void clear_for_reuse(struct packet *packet)
{
	struct connection *connection = connection_find(&packet->flow);

	if (!connection)
		return;
	COUNT(connections_reopened);
	packet->after = connection->after;
	connection_remove(&packet->flow, connection);
	if (packet->flow.hook == HOOK_INGRESS)
		masquerade_forget(&packet->after);
}

/* Whether there is anything to do for a packet of no known connection. */
static inline bool unknown_matters(const struct settings *settings, const struct packet *packet,
				   __u8 hook)
{
	if (packet->fragment == FRAGMENT_LATER || address_is_v4_loopback(&packet->flow.destination))
		return false;
	if (packet->reuse || settings->settling)
		return true;
	if (hook == HOOK_EGRESS)
		return false;
	/* From the middle of a connection we never saw: whoever translated it goes on doing so. */
	return packet->flow.protocol != PROTO_TCP || tcp_opens(packet->tcp_flags);
}

/* What is parsed: to its connection, or to where one begins. `inlined`: known packets end here. */
static inline int lead(struct __sk_buff *skb, const struct settings *settings,
		       struct packet *packet, __u8 hook, bool inlined)
{
	struct connection *connection;

	if (packet->icmp_error)
		return step(skb, STEP_ICMP);
	if (packet->echo)
		return step(skb, STEP_FIRST);

	connection = connection_find(&packet->flow);
	if (connection && tcp_opens(packet->tcp_flags) && connection_closed(connection)) {
		if (hook == HOOK_EGRESS && !connection->reply) {
			connection_reopen(&packet->flow, connection);
		} else {
			packet->reuse = 1;
			connection = NULL;
		}
	}
	if (!connection)
		return unknown_matters(settings, packet, hook) ? step(skb, STEP_FIRST) :
								 TC_ACT_UNSPEC;
	if (!inlined || needs_care(connection, hook))
		return step(skb, STEP_CAREFUL);
	return next_packet(skb, packet, connection);
}

static inline int walk(struct __sk_buff *skb, __u32 l2, __u8 hook)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();

	if (!settings || !packet)
		return TC_ACT_UNSPEC;
	switch (parse(skb, l2, hook, settings->settling, packet)) {
	case PARSED:
		/* Devices without a link layer header are few: no copy for them of what comes then. */
		return lead(skb, settings, packet, hook, l2 != 0);
	case PARSED_UNUSUAL:
		return step(skb, STEP_UNUSUAL);
	default:
		return TC_ACT_UNSPEC;
	}
}

int ingress(struct __sk_buff *skb)
{
	return walk(skb, ETH_HLEN, HOOK_INGRESS);
}

int egress(struct __sk_buff *skb)
{
	return walk(skb, ETH_HLEN, HOOK_EGRESS);
}

/* The same for interfaces without a link layer header: tun, ipip, wireguard. */
int ingress_l3(struct __sk_buff *skb)
{
	return walk(skb, 0, HOOK_INGRESS);
}

int egress_l3(struct __sk_buff *skb)
{
	return walk(skb, 0, HOOK_EGRESS);
}

int step_first(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();
	int verdict;

	if (!settings || !packet)
		return TC_ACT_SHOT;
	if (packet->reuse)
		clear_for_reuse(packet);
	verdict = first_packet(skb, settings, packet);
	if (verdict != VERDICT_DNAT)
		fragment_passed(packet);
	if (verdict == VERDICT_NONE)
		return TC_ACT_UNSPEC;
	if (verdict == VERDICT_REJECT)
		return step(skb, STEP_REJECT);
	return verdict == VERDICT_DNAT ? step(skb, STEP_OPEN) : TC_ACT_SHOT;
}

int step_open(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();

	if (!settings || !packet || !open_connection(settings, packet, &packet->choice))
		return TC_ACT_SHOT;
	/* A direct flow whose port had to change is none of a service's. */
	if (packet->choice.service) {
		choice_made(&packet->choice, &packet->client);
		count_packet(packet->choice.backend.counters, false, skb->len);
	}
	return finish(skb, packet);
}

int step_careful(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();
	struct connection *connection;

	if (!packet)
		return TC_ACT_SHOT;
	connection = connection_find(&packet->flow);
	/* Evicted or collected this instant: the client will ask again. */
	if (!connection)
		return TC_ACT_SHOT;
	if (connection->masquerade_pending)
		return step(skb, STEP_MASQUERADE);
	if (packet->flow.hook == HOOK_INGRESS && connection->masquerade &&
	    !note_masquerade(&connection->after, connection))
		return TC_ACT_SHOT;
	return next_packet(skb, packet, connection);
}

int step_masquerade(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();
	struct connection *connection;

	if (!packet)
		return TC_ACT_SHOT;
	connection = connection_find(&packet->flow);
	if (!connection || !connection->masquerade_pending)
		return TC_ACT_SHOT;
	switch (masquerade(skb, packet, connection)) {
	case 0:
		return step(skb, STEP_CAREFUL);
	case -EAGAIN:
		return step(skb, STEP_MASQUERADE);
	default:
		return TC_ACT_SHOT;
	}
}

int step_icmp(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? translate_icmp_error(skb, packet) : TC_ACT_SHOT;
}

int step_unusual(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();
	int verdict;

	if (!settings || !packet)
		return TC_ACT_UNSPEC;
	switch (parse_unusual(skb, packet)) {
	case PARSED:
		verdict = lead(skb, settings, packet, packet->flow.hook, false);
		break;
	case PARSED_EARLY:
		if (fragment_may_wait(packet))
			return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
		return TC_ACT_UNSPEC;
	default:
		verdict = TC_ACT_UNSPEC;
	}
	fragment_passed(packet);
	return verdict;
}

int step_rewrite(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();
	int verdict;

	if (!packet)
		return TC_ACT_SHOT;
	if (packet->fragment == FRAGMENT_LATER)
		return rewritten(rewrite_addresses(skb, packet));
	if (packet->flow.protocol == PROTO_SCTP)
		verdict = rewritten(rewrite_sctp(skb, packet));
	else
		verdict = rewritten(rewrite(skb, packet));
	if (verdict != TC_ACT_UNSPEC)
		fragment_passed(packet);
	else if (packet->fragment == FRAGMENT_FIRST)
		fragment_note(packet, FRAGMENT_TRANSLATED);
	return verdict;
}

int step_reject(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? reject(skb, packet) : TC_ACT_SHOT;
}

int collect(struct __sk_buff *skb)
{
	return collect_flows(skb);
}

int decide(struct __sk_buff *skb)
{
	return decide_question(skb);
}

int connect4(struct bpf_sock_addr *context)
{
	return socket_forward(context, true, true);
}

int connect6(struct bpf_sock_addr *context)
{
	return socket_forward(context, false, true);
}

int sendmsg4(struct bpf_sock_addr *context)
{
	return socket_forward(context, true, false);
}

int sendmsg6(struct bpf_sock_addr *context)
{
	return socket_forward(context, false, false);
}

int recvmsg4(struct bpf_sock_addr *context)
{
	return socket_reverse(context, true);
}

int recvmsg6(struct bpf_sock_addr *context)
{
	return socket_reverse(context, false);
}

int getpeername4(struct bpf_sock_addr *context)
{
	return socket_reverse(context, true);
}

int getpeername6(struct bpf_sock_addr *context)
{
	return socket_reverse(context, false);
}
