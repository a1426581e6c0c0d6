/*
 * The fast path: a translated packet is redirected to the interface by which it leaves. Routes and
 * neighbours are those of the kernel, but the rest of its stack is skipped. Conntrack must see all
 * packets of a connection or none: a FIN of an unknown connection is invalid. So the first packet
 * decides for the whole connection, if packets of both directions can take the fast path.
 * `shortcut` of an entry is then the interface by which they come. A packet that comes by another
 * one takes the stack, so this replaces a reverse path filter.
 *
 * Where the node has policies only the middle of a connection is fast, as maps/established_flows.h
 * says; then the route back to the sender is what replaces that filter.
 *
 * The stack still gets packets that it has to answer or to fragment: on a last hop, or too long.
 */
#pragma once

#include "lib/flow.h"
#include "lib/verifier.h"
#include "lib/wire.h"
#include "maps/backend_counters.h"
#include "maps/cached_routes.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/established_flows.h"
#include "maps/interfaces.h"
#include "maps/port_filter.h"
#include "maps/settings.h"
#include "path/conn/state.h"
#include "path/fast/route.h"
#include "path/marks.h"
#include "path/packet.h"
#include "path/rewrite.h"
#include "path/tail_calls.h"

#define MAC_BYTES 12 /* both addresses of an Ethernet header, the destination first */

/* True if a packet comes by an interface: by that itself, or by a port of the bridge that it is. */
static inline bool comes_by(struct __sk_buff *skb, __u32 ifindex)
{
	__u32 port = skb->ifindex;
	struct interface *entry;

	if (!ifindex || ifindex == port)
		return ifindex;
	entry = interfaces.lookup(&port);
	return entry && entry->bridge == ifindex;
}

/*
 * Return the entry of a reply that was not masqueraded. It has an entry at egress only. The fast
 * path skips that hook, so it looks there at ingress. `flow` becomes the key of the entry.
 * `passes_egress` is set if there is an entry, of the fast path or not.
 */
static inline struct connection *fast_path_reply(struct __sk_buff *skb,
						 const struct settings *settings, struct flow *flow,
						 __u8 *passes_egress)
{
	struct connection *leaving;

	if (!(settings->fast_path || settings->established || settings->fast_outside))
		return NULL;
	if (!settings->takeover && !port_filter_of(flow, HOOK_EGRESS))
		return NULL;
	flow->hook = HOOK_EGRESS;
	leaving = connection_find(flow);
	*passes_egress = leaving != NULL;
	if (!leaving || !leaving->reply)
		return NULL;
	if (leaving->outside)
		return settings->fast_outside ? leaving : NULL;
	if (settings->takeover)
		return NULL;
	return settings->established || comes_by(skb, leaving->shortcut) ? leaving : NULL;
}

/*
 * True if the fast path serves a flow that is not translated: both ends are pods, on this node or
 * on others.
 */
static inline bool between_pods(const struct settings *settings, const struct flow *flow, bool v4)
{
	return (settings->fast_path || settings->established) && !settings->takeover &&
	       ends_in_pod_range(settings, flow, v4);
}

/* True if the connection that a packet opens, routed as `routed`, is one from outside to a pod. */
static inline bool from_outside(const struct settings *settings, const struct packet *packet,
				const struct flow *routed)
{
	return settings->fast_path && settings->fast_outside && packet->flow.hook == HOOK_INGRESS &&
	       in_pod_range(settings, &routed->destination, packet->v4) &&
	       !in_pod_range(settings, &routed->source, packet->v4);
}

/*
 * Return the route of a packet, and keep what sending it takes with the packet. NULL if the packet
 * takes the stack.
 */
static inline struct cached_route *fast_path_find(struct __sk_buff *skb, struct packet *packet,
						  enum forwarding via)
{
	struct cached_route *cached =
		cached_route_find(skb, packet, &packet->after, via & BY_FAST_PATH_ALL);

	if (!cached || (via & BY_FAST_PATH_BACK && !cached->both_ways))
		return NULL;
	__builtin_memcpy(packet->forward.route, cached->route, sizeof(packet->forward.route));
	packet->forward.to_peer = cached->peer;
	packet->forward.to_pod = cached->pod;
	packet->forward.egress_done = 0;
	packet->forward.hop = 1;
	return cached;
}

static inline enum forwarding forwarding_of(struct __sk_buff *skb, const struct settings *settings,
					    struct packet *packet,
					    const struct connection *connection)
{
	enum forwarding via = connection->reply || connection->masquerade ? BY_FAST_PATH_TWICE :
									    BY_FAST_PATH;

	if (connection->outside)
		return settings->fast_outside ? via | BY_FAST_PATH_OUTSIDE : BY_STACK;
	if (settings->takeover)
		return BY_STACK;
	if (settings->established)
		return !packet->fragment &&
				       established_goes_on(&connection->after, packet->tcp_flags) ?
			       via | BY_FAST_PATH_BACK :
			       BY_STACK;
	return settings->fast_path && comes_by(skb, connection->shortcut) ? via : BY_STACK;
}

/*
 * Keep with a packet of a connection how it goes on. (Otherwise the verifier would follow the rest
 * for each way.)
 */
static inline void packet_go_by(struct __sk_buff *skb, const struct settings *settings,
				struct packet *packet, __u8 hook,
				const struct connection *connection)
{
	packet->forward.via =
		hook == HOOK_INGRESS ? forwarding_of(skb, settings, packet, connection) : BY_STACK;
	AS_IN_MEMORY();
}

/*
 * True if a packet with SYN from the server's side shows that an untranslated connection is over:
 * the pod begins another one with the same ports, or answers to a connection whose beginning was
 * not seen here. Netfilter has to see all of that. If the connection is not closed, only a packet
 * by the pod's own interface ends it: behind a bridge, other pods could send such a packet, too.
 */
static inline bool untranslated_is_over(struct __sk_buff *skb, const struct connection *leaving,
					bool opens)
{
	if (leaving->outside != OUTSIDE_UNTRANSLATED || !comes_by(skb, leaving->shortcut))
		return false;
	return connection_closed(leaving) || (opens && skb->ifindex == leaving->shortcut);
}

/*
 * True if netfilter has to know a connection before its packets take the fast path. It does not know
 * connections from outside, which take the fast path from their first packet on, before the agent
 * has told it of them.
 */
static inline bool netfilter_comes_first(const struct settings *settings,
					 const struct connection *connection)
{
	return settings->established && !connection->outside;
}

/*
 * Call fast_path_reply() for a packet. Return the entry if the packet may be forwarded with it. A
 * SYN is looked up only if it may end an untranslated connection: the client of such a connection
 * has a port of the masquerade range.
 */
static inline struct connection *
fast_path_reply_of(struct __sk_buff *skb, const struct settings *settings, struct packet *packet)
{
	struct connection *leaving;
	bool opens = tcp_opens(packet->tcp_flags);

	if (packet->reuse ||
	    (settings->established && !settings->fast_outside &&
	     !established_ports_listed(packet->flow.source_port, packet->flow.destination_port)) ||
	    (opens && !(settings->fast_outside &&
			is_masquerade_port(settings, packet->flow.destination_port))))
		return NULL;
	packet->after = packet->flow;
	leaving = fast_path_reply(skb, settings, &packet->after, &packet->passes_egress);
	if (leaving && packet->tcp_flags & TCP_SYN && untranslated_is_over(skb, leaving, opens)) {
		packet->reuse = REUSE_CLOSED;
		return NULL;
	}
	if (opens) {
		packet->passes_egress = 0;
		return NULL;
	}
	if (leaving && netfilter_comes_first(settings, leaving) &&
	    (packet->fragment || !established_goes_on(&packet->flow, packet->tcp_flags)))
		return NULL;
	return leaving;
}

/* Return how a packet of KIND_REPLY goes on. */
static inline enum forwarding fast_path_reply_via(const struct settings *settings,
						  const struct connection *leaving)
{
	if (leaving->outside)
		return BY_FAST_PATH_TWICE | BY_FAST_PATH_OUTSIDE;
	return BY_FAST_PATH_TWICE | (settings->established ? BY_FAST_PATH_BACK : 0);
}

/*
 * True if the connection that `packet` opens, and that is routed as `packet->after`, takes the fast
 * path; its interfaces are noted. CNIs masquerade in the stack what leaves the pod range. If
 * netfilter meets a connection in its middle, by an answer to a client outside (a fragment, or when
 * the fast path is given up), it takes the answer for a connection of the pod, and the client gets
 * it from another port. So only connections between pods may skip the stack.
 */
static inline bool fast_path_decide(struct __sk_buff *skb, const struct settings *settings,
				    struct packet *packet)
{
	struct cached_route *cached;

	if (settings->established || packet->fragment || packet->flow.protocol == PROTO_SCTP ||
	    !fast_path_guarded(settings))
		return false;
	packet->first.outside = !between_pods(settings, &packet->after, packet->v4);
	if (packet->first.outside && !from_outside(settings, packet, &packet->after))
		return false;
	cached = fast_path_find(skb, packet, BY_FAST_PATH_BACK);
	if (!cached)
		return false;
	packet->first.ends.client = skb->ifindex;
	packet->first.ends.backend = route_of(packet)->ifindex;
	return true;
}

/*
 * Do what egress would do: a packet that is redirected to the other end of a veth does not pass
 * egress, and a packet that leaves the node need not be looked at twice. A packet that needs more
 * than an update passes egress, of the pod's interface if it goes to a pod. `leaving`: its entry at
 * egress, if it is known already.
 */
static inline void translate_for_egress(struct __sk_buff *skb, struct packet *packet,
					struct connection *leaving)
{
	if (packet->forward.to_pod && !packet->forward.to_peer)
		return;
	packet->after.hook = HOOK_EGRESS;
	if (!leaving)
		leaving = connection_find(&packet->after);
	if (!leaving || !leaving->established || tcp_opens(packet->tcp_flags)) {
		packet->forward.to_peer = 0;
		return;
	}
	if (leaving->counters)
		count_packet(leaving->counters, leaving->reply, skb->len);
	connection_track(skb, packet, &packet->after, leaving);
	packet->after = leaving->after;
	packet->forward.egress_done = 1;
}

/* bcc declares this helper without the size. */
static long (*redirect_neigh)(__u32 ifindex, struct bpf_redir_neigh *next, int size,
			      __u64 flags) = (void *)BPF_FUNC_redirect_neigh;

static inline int redirect_to_neighbour(const struct bpf_fib_lookup *route)
{
	struct bpf_redir_neigh next = {.nh_family = route->family};

	__builtin_memcpy(next.ipv6_nh, route->ipv6_dst, sizeof(next.ipv6_nh));
	return redirect_neigh(route->ifindex, &next, sizeof(next), 0);
}

/* With link layer addresses: in the pod there may be a bridge, with a virtual machine behind it. */
static inline int redirect_to_peer(struct __sk_buff *skb, const struct bpf_fib_lookup *route,
				   __u32 interface)
{
	__u8 addresses[MAC_BYTES];

	__builtin_memcpy(addresses, route->dmac, MAC_BYTES / 2);
	__builtin_memcpy(addresses + MAC_BYTES / 2, route->smac, MAC_BYTES / 2);
	if (bpf_skb_store_bytes(skb, 0, addresses, MAC_BYTES, 0))
		return rewritten(-1);
	return bpf_redirect_peer(interface, 0);
}

static inline int fast_path_leave(struct __sk_buff *skb, struct packet *packet)
{
	COUNT(fast_forwarded);
	if (packet->forward.to_peer)
		return redirect_to_peer(skb, route_of(packet), packet->forward.to_peer);
	if (packet->forward.egress_done && !packet->forward.to_pod) {
		struct settings *settings = settings_get();

		if (settings)
			egress_done_note(skb, settings);
	}
	return redirect_to_neighbour(route_of(packet));
}

/*
 * Rewrite a packet and send it on: by the fast path, as far as `via` allows. The route of a first
 * packet is known already. `leaving`: as for translate_for_egress().
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

/* Call leave() from a step: there the fast path is a program of its own. */
static inline int leave_rare(struct __sk_buff *skb, struct packet *packet, enum forwarding via)
{
	packet->forward.via = via;
	return via == BY_STACK ? leave(skb, packet, BY_STACK, NULL) :
				 tail_call(skb, STEP_FAST_PATH);
}
