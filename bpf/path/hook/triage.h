/*
 * Triage: what kind of flow a packet is of. It is decided here and nowhere else, with as few loads
 * as possible; handle() of bpfsvc.c switches on the answer.
 *
 * The kinds of flows:
 *
 *	connection	a translated flow; its entries are in maps/connections.h
 *	direct flow	from a client to a backend's own address (maps/direct_flows.h)
 *	fast flow	between pods, not translated, on the fast path (maps/fast_flows.h)
 *	established	a level of the fast path: packets are fast only after the handshake, because
 *			netfilter has to see that (maps/established_flows.h)
 *	outside		a connection from outside of the node to a pod (path/conn/outside.h)
 *	untranslated	an outside connection that another node has translated. Its entries change
 *			nothing and let it take the fast path (path/first/direct.h)
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/verifier.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/destinations.h"
#include "maps/direct_flows.h"
#include "maps/fast_flows.h"
#include "maps/port_filter.h"
#include "maps/settings.h"
#include "path/conn/state.h"
#include "path/fast/established.h"
#include "path/fast/fast_path.h"
#include "path/first/netfilter_ports.h"
#include "path/first/unknown.h"
#include "path/marks.h"
#include "path/packet.h"

/* What is done with a packet. */
enum kind {
	KIND_OTHER,	 /* nothing in it concerns Services: it passes */
	KIND_FAST_FLOW,	 /* of a fast flow, or a SYN that may open one */
	KIND_DIRECT,	 /* of no connection, but the fast path may take it */
	KIND_CONNECTION, /* of a connection that has an entry at this hook */
	KIND_REPLY,	 /* at ingress, of a connection that has an entry at egress only */
	KIND_FIRST,	 /* it may open a connection, or be refused: STEP_FIRST */
	KIND_ICMP_ERROR, /* STEP_ICMP */
	KIND_UNUSUAL,	 /* a fragment, extension headers or a tag: STEP_PARSE_SLOW */
	KIND_EARLY,	 /* a fragment that overtook the first one of its datagram */
	KIND_HALF,	 /* its entry is gone that has to translate it a second time */
	KIND_UNDECIDED,	 /* its headers do not tell; triage_by_entries() does */
};

/*
 * Parse a frame of another type than IP. It may have a VLAN tag in its bytes that only says a
 * priority. (Most tags are kept beside the frame.)
 */
static inline enum kind parse_tagged(struct __sk_buff *skb, __u32 l2, __u8 hook,
				     struct packet *packet)
{
	struct vlan_tag tag;

	if (l2 != ETH_HLEN || skb->vlan_present ||
	    (skb->protocol != bpf_htons(ETHERTYPE_VLAN) &&
	     skb->protocol != bpf_htons(ETHERTYPE_SERVICE_VLAN)) ||
	    bpf_skb_load_bytes(skb, l2, &tag, sizeof(tag)) || tag.control & bpf_htons(VLAN_ID))
		return KIND_OTHER;
	packet->v4 = tag.type == bpf_htons(ETHERTYPE_IPV4);
	if (!packet->v4 && tag.type != bpf_htons(ETHERTYPE_IPV6))
		return KIND_OTHER;
	packet->l3 = l2 + VLAN_HLEN;
	packet->flow.hook = hook;
	return KIND_UNUSUAL;
}

/* True if a packet that leaves opens a TCP connection, of this node or as if it were. */
static inline bool opens_at_egress(const struct __sk_buff *skb, const struct settings *settings,
				   __be16 source, __u8 tcp_flags)
{
	return tcp_opens(tcp_flags) &&
	       (!skb->ingress_ifindex || is_masquerade_port(settings, source));
}

/* True if a packet that opens a TCP connection is one between pods, and to no frontend. */
static inline bool fast_flow_may_open(const struct settings *settings, const struct packet *packet)
{
	return ends_in_pod_range(settings, &packet->flow, packet->v4) &&
	       !destination_may_be_frontend(&packet->flow.destination);
}

/*
 * True if a packet may open or end a connection, whatever its ports are. At ingress each packet
 * that is not TCP may open one.
 */
static inline bool may_open_or_end(const struct __sk_buff *skb, const struct settings *settings,
				   __u8 hook, __u8 protocol, __be16 source, __u8 tcp_flags)
{
	if (tcp_ends(tcp_flags))
		return true;
	if (hook == HOOK_EGRESS)
		return unknown_marked(skb) || opens_at_egress(skb, settings, source, tcp_flags);
	return protocol != PROTO_TCP || tcp_opens(tcp_flags);
}

/* True if a TCP packet is of a fast flow, or may open one. */
static inline bool may_be_fast_flow(const struct settings *settings, const struct packet *packet,
				    __u8 tcp_flags)
{
	if (tcp_opens(tcp_flags))
		return fast_flow_may_open(settings, packet);
	return fast_flow_goes_on(&packet->flow, tcp_flags);
}

/*
 * Return the kind of a packet by its ports and, where it may be of a fast flow, by its addresses.
 */
static inline enum kind triage_by_ports(struct __sk_buff *skb, const struct settings *settings,
					struct packet *packet, __u8 protocol,
					const struct ports *ports, const struct tcp_progress *tcp)
{
	__u8 hook = packet->flow.hook;
	bool looked_at = packet->l3 == ETH_HLEN && settings->established &&
			 established_is_worth(hook, protocol, ports, tcp->flags);
	bool fast = packet->l3 == ETH_HLEN && hook == HOOK_INGRESS &&
		    (settings->fast_path || looked_at || settings->fast_outside);

	if ((fast || looked_at) && !parse_flow(skb, packet, protocol, ports, tcp))
		return KIND_OTHER;
	if (looked_at && hook == HOOK_EGRESS)
		established_passed(skb, settings, packet);
	if (fast && settings->fast_path && protocol == PROTO_TCP &&
	    may_be_fast_flow(settings, packet, tcp->flags))
		return KIND_FAST_FLOW;
	if (may_open_or_end(skb, settings, hook, protocol, ports->source, tcp->flags))
		return KIND_UNDECIDED;
	if (port_filter_find(hook, protocol, ports->source, ports->destination) ||
	    (fast && port_filter_find(HOOK_EGRESS, protocol, ports->source, ports->destination))) {
		/* Most packets with such ports are of direct flows to the same backends. */
		bool middle = protocol == PROTO_TCP && !(tcp->flags & TCP_SYN) &&
			      (fast || looked_at || parse_flow(skb, packet, protocol, ports, tcp));

		if (!middle || !fast_flow_is_untranslated(&packet->flow))
			return KIND_UNDECIDED;
	}
	return fast ? KIND_DIRECT : KIND_OTHER;
}

/*
 * Parse a packet behind a link layer header of `l2` bytes, and return its kind as far as its
 * headers tell it. Most packets are in the middle of a TCP connection that was never translated. So
 * that is found out before anything else is read: by the flow if the flow is fast, else by the
 * ports. (Replies of the fast path have an entry at egress only, so ingress looks there, too. And
 * the end of a connection may be the end of a direct flow, see maps/direct_flows.h.)
 */
static inline enum kind triage_by_headers(struct __sk_buff *skb, __u32 l2, __u8 hook,
					  const struct settings *settings, struct packet *packet)
{
	bool v4 = skb->protocol == bpf_htons(ETHERTYPE_IPV4);
	__u8 icmp_error = 0, echo = 0;
	struct tcp_progress tcp = {};
	struct ports ports = {};
	struct ip_start ip = {};
	enum kind kind = KIND_UNDECIDED;
	__u32 l4;

	if (!v4 && skb->protocol != bpf_htons(ETHERTYPE_IPV6))
		return parse_tagged(skb, l2, hook, packet);
	if (!is_of_vlan(skb))
		ip = parse_ip(skb, l2, v4, false);
	if (!ip.length)
		return KIND_OTHER;
	packet->l3 = l2;
	packet->v4 = v4;
	packet->flow.hook = hook;
	packet->jumbo = 0;
	if (ip.unusual) {
		if (v4 || !ipv6_is_big_tcp(skb, l2, ip.protocol))
			return KIND_UNUSUAL;
		packet->jumbo = sizeof(struct ipv6_jumbo);
		ip.protocol = PROTO_TCP;
	}
	packet->l4 = l2 + ip.length + packet->jumbo;
	AS_IN_MEMORY();
	l4 = packet->l4;
	if (has_ports(ip.protocol)) {
		if (!read_bytes(skb, l4, &ports, sizeof(ports)))
			return KIND_OTHER;
		if (ip.protocol == PROTO_TCP &&
		    !read_bytes(skb, l4 + TCP_PROGRESS_OFFSET, &tcp, sizeof(tcp)))
			return KIND_OTHER;
		if (!settings->takeover)
			kind = triage_by_ports(skb, settings, packet, ip.protocol, &ports, &tcp);
		if (kind != KIND_UNDECIDED)
			return kind;
	} else if (!parse_icmp(skb, l4, hook, v4, ip.protocol, &icmp_error, &echo)) {
		return KIND_OTHER;
	}
	packet->icmp_error = icmp_error;
	packet->echo = echo;
	return parse_flow(skb, packet, ip.protocol, &ports, &tcp) ? KIND_UNDECIDED : KIND_OTHER;
}

/* True if STEP_FIRST may have something to do for a packet of no known connection. */
static inline bool may_be_first(const struct __sk_buff *skb, const struct settings *settings,
				const struct packet *packet, __u8 hook)
{
	if (packet->fragment == FRAGMENT_LATER || address_is_loopback(&packet->flow.destination))
		return false;
	if (packet->reuse)
		return true;
	/* An answer that has an entry at egress is not for the build that is being replaced. */
	if (settings->takeover)
		return packet->flow.protocol != PROTO_TCP || !packet->passes_egress;
	if (hook == HOOK_EGRESS)
		return unknown_marked(skb) ||
		       (opened_here(skb, packet->tcp_flags) &&
			destination_may_be_frontend(&packet->flow.destination)) ||
		       netfilter_port_possible(skb, settings, packet);
	if (packet->flow.protocol == PROTO_TCP && !tcp_opens(packet->tcp_flags))
		return conn_unknown_possible(packet);
	return destination_may_be_known(&packet->flow);
}

/*
 * Return the connection of a packet that has an entry at this hook. NULL if it has none, or if a
 * SYN opens it anew: then `packet->reuse` says so.
 */
static inline struct connection *connection_of(const struct settings *settings,
					       struct packet *packet, __u8 hook)
{
	struct connection *connection = NULL;

	if (settings->takeover || port_filter_of(&packet->flow, hook))
		connection = connection_find(&packet->flow);
	if (!connection || !tcp_opens(packet->tcp_flags) || !connection_closed(connection))
		return connection;
	if (hook == HOOK_EGRESS && !connection->reply) {
		connection_reopen(&packet->flow, connection);
		return connection;
	}
	packet->reuse = REUSE_CLOSED;
	return NULL;
}

/*
 * Return the kind of a packet by its entries, after its headers did not tell it. `entry` becomes
 * the entry of KIND_CONNECTION and KIND_REPLY. `by_steps`: steps have to forward the packet, and of
 * replies they forward only those of outside connections.
 */
static inline enum kind triage_by_entries(struct __sk_buff *skb, const struct settings *settings,
					  struct packet *packet, __u8 hook, bool by_steps,
					  struct connection **entry)
{
	if (packet->icmp_error)
		return KIND_ICMP_ERROR;
	if (packet->echo)
		return destination_may_be_frontend(&packet->flow.destination) ? KIND_FIRST :
										KIND_OTHER;
	*entry = connection_of(settings, packet, hook);
	if (*entry)
		return KIND_CONNECTION;
	if (hook == HOOK_EGRESS && !packet->reuse && pass_is_half(skb, settings, &packet->flow))
		return KIND_HALF;
	if (tcp_ends(packet->tcp_flags))
		direct_flow_end(&packet->flow, packet->tcp_flags);
	if (hook == HOOK_INGRESS && (!by_steps || settings->fast_outside)) {
		*entry = fast_path_reply_of(skb, settings, packet);
		if (*entry && (!by_steps || (*entry)->outside))
			return KIND_REPLY;
	}
	return may_be_first(skb, settings, packet, hook) ? KIND_FIRST : KIND_DIRECT;
}
