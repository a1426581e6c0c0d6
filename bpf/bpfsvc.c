/*
 * The walk of a packet. Every interface runs `ingress` on what it receives and `egress` on what it
 * sends; in between the kernel routes an ordinary packet from client to backend. Sockets of the
 * node and of its pods take the shorter way at the end of this file.
 */
#include "protocols.h"
#include "address.h"
#include "flow.h"
#include "settings.h"
#include "counters.h"
#include "filter.h"
#include "names.h"
#include "node.h"
#include "destinations.h"
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
#include "shortcut.h"
#include "quotes.h"
#include "reset.h"
#include "reject.h"
#include "icmp.h"
#include "translations.h"
#include "namespaces.h"
#include "sockets.h"
#include "collect.h"
#include "decide.h"
#include "opening.h"
#include "following.h"
#include "uplinks.h"
#include "edge.h"

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
	if (packet->flow.protocol == PROTO_TCP && !tcp_opens(packet->tcp_flags))
		return false;
	return destination_matters(&packet->flow);
}

/* What is parsed: to its connection, or to where one begins. `inlined`: known packets end here. */
static inline int lead(struct __sk_buff *skb, const struct settings *settings,
		       struct packet *packet, __u8 hook, bool inlined)
{
	struct connection *connection, *leaving = NULL;
	enum way way;

	if (packet->icmp_error)
		return step(skb, STEP_ICMP);
	if (packet->echo)
		return destination_served(&packet->flow.destination) ? step(skb, STEP_FIRST) :
								       TC_ACT_UNSPEC;

	connection = connection_find(&packet->flow);
	if (connection && tcp_opens(packet->tcp_flags) && connection_closed(connection)) {
		if (hook == HOOK_EGRESS && !connection->reply) {
			connection_reopen(&packet->flow, connection);
		} else {
			packet->reuse = 1;
			connection = NULL;
		}
	}
	if (connection) {
		if (!inlined || needs_care(connection, hook))
			return step(skb, STEP_CAREFUL);
		way = hook == HOOK_INGRESS ? way_of(skb, settings, connection) : BY_STACK;
		if (!follow(skb, packet, connection))
			return TC_ACT_SHOT;
	} else {
		if (hook == HOOK_INGRESS && inlined)
			leaving = shortcut_packet(skb, settings, packet);
		if (!leaving)
			return unknown_matters(settings, packet, hook) ? step(skb, STEP_FIRST) :
									 TC_ACT_UNSPEC;
		way = BY_SHORTCUT_AGAIN;
	}
	return finish(skb, packet, way, leaving);
}

static inline int walk(struct __sk_buff *skb, __u32 l2, __u8 hook)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();

	if (!settings || !packet)
		return TC_ACT_UNSPEC;
	switch (parse(skb, l2, hook, settings, packet)) {
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
	if (verdict != VERDICT_DNAT)
		return TC_ACT_SHOT;
	plan_connection(skb, settings, packet);
	return step(skb, STEP_OPEN);
}

int step_open(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();
	enum way way = BY_STACK;

	if (!settings || !packet || !open_connection(settings, packet, &packet->choice))
		return TC_ACT_SHOT;
	/* A direct flow whose port had to change is none of a service's. */
	if (packet->choice.service) {
		choice_made(&packet->choice, &packet->client);
		count_packet(packet->choice.backend.counters, false, skb->len);
	}
	if (packet->ends.client)
		way = packet->choice.masquerade ? BY_SHORTCUT_AGAIN : BY_SHORTCUT;
	return finish_rare(skb, packet, way);
}

int step_careful(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();
	struct connection *connection;
	enum way way;

	if (!settings || !packet)
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
	way = packet->flow.hook == HOOK_INGRESS ? way_of(skb, settings, connection) : BY_STACK;
	return follow(skb, packet, connection) ? finish_rare(skb, packet, way) : TC_ACT_SHOT;
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
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();

	return settings && packet ? translate_icmp_error(skb, settings, packet) : TC_ACT_SHOT;
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

int step_shortcut(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? finish(skb, packet, packet->way, NULL) : TC_ACT_SHOT;
}

int step_reject(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? reject(skb, packet) : TC_ACT_SHOT;
}

/* What comes from outside for a backend elsewhere, before the kernel has made an skb of it. */
int edge(struct xdp_md *context)
{
	return edge_packet(context);
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
