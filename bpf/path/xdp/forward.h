/*
 * XDP: packets that come by an uplink for a backend on another node, and their replies, are
 * translated and sent on before the kernel has made an skb of them. The translations of both hooks
 * are made at once, by the same entries. The packet is routed as the kernel would route it: by its
 * flow between the hooks.
 *
 * Only packets in the middle of a connection are handled. Those that open or end one go by the
 * stack unchanged, as does everything unusual: so netfilter sees every new connection, can refuse
 * it, and knows when it is over.
 */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/backend_counters.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/settings.h"
#include "maps/uplinks.h"
#include "path/conn/state.h"
#include "path/fast/route.h"
#include "path/xdp/parse.h"
#include "path/xdp/rewrite.h"

/*
 * Turns: periods of 2^34 ns, 17 s. In each turn one packet of each direction goes by the stack. A
 * fib lookup does not mark a neighbour as used, so without that the kernel would never probe
 * whether it still exists; and netfilter would let the connection time out.
 */
#define TURN_SHIFT 34

static inline __u8 turn_of(__u64 now)
{
	return (__u8)(now >> TURN_SHIFT) | 0x80;
}

/*
 * True if an entry can translate, with nothing else to do. UDP without an answer so far qualifies
 * after its first packet has left: then its port is chosen, and netfilter has let it pass. What the
 * client sends after the answer establishes it, in the stack.
 */
static inline bool xdp_may_use(const struct connection *connection, const struct xdp_packet *packet)
{
	if (connection->fin_sent || connection->fin_received || connection->reset ||
	    (packet->tcp.flags &&
	     !progress_is_usual(connection, packet->tcp.flags, packet->tcp.acknowledged)))
		return false;
	return connection->established ||
	       (packet->flow.protocol == PROTO_UDP && connection->held && !connection->reply &&
		!connection->replied && !connection->masquerade_pending);
}

/*
 * True if a packet also needs an entry at egress: it has to be masqueraded, or is a reply that
 * egress translates, or its connection is not known at ingress or not established.
 */
static inline bool xdp_needs_egress(const struct connection *ingress)
{
	return !ingress || ingress->reply || ingress->masquerade || !ingress->established;
}

/* Note the time as connection_track() does. True if this is the turn's packet for the stack. */
static inline bool xdp_renew(struct connection *connection, __u64 now)
{
	__u64 seen = connection->seen;

	if (now - seen <= NS_PER_SECOND)
		return false;
	connection->seen = now;
	return seen >> TURN_SHIFT != now >> TURN_SHIFT;
}

/*
 * Find the uplink and the neighbour where the kernel would send the packet. False if there is none.
 */
static inline bool xdp_route(struct xdp_md *context, const struct xdp_packet *packet,
			     const struct flow *routed, const struct uplink *uplink,
			     struct bpf_fib_lookup *route, struct connection *first, __u64 now)
{
	struct uplink *out;
	__u32 ifindex;
	long result;

	route_ask(route, routed, packet->v4, uplink->ifindex, packet->traffic_class,
		  packet->length);
	result = bpf_fib_lookup(context, route, sizeof(*route), 0);
	/* The stack resolves the neighbour, or answers that the packet is too big. */
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH || result == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		COUNT(edge_passed__not_now);
		return false;
	}
	ifindex = route->ifindex;
	out = result ? NULL : uplinks.lookup(&ifindex);
	if (out && out->ifindex == ifindex && (ifindex == uplink->ifindex || out->takes))
		return true;
	/*
	 * To this node, to a pod of it or into a tunnel: its packets take the stack until the next
	 * turn.
	 */
	first->stack_turn = turn_of(now);
	COUNT(edge_passed__not_by_uplink);
	return false;
}

/* Count a packet that is sent, and note what it acknowledges as connection_track() does. */
static inline void xdp_count(struct connection *connection, const struct xdp_packet *packet,
			     __u32 bytes)
{
	if (packet->tcp.flags & TCP_ACK) {
		connection->acknowledged = packet->tcp.acknowledged;
		connection->window = packet->tcp.window;
	}
	if (connection->counters)
		count_packet(connection->counters, connection->reply, bytes);
}

/* True if a frame is complete, and for this machine: a switch may flood frames for others, too. */
static inline bool xdp_is_ours(void *data, void *end, const struct xdp_packet *packet,
			       const struct uplink *uplink)
{
	struct ethernet *link = data;

	return data + ETH_HLEN <= end && end - data >= ETH_HLEN + packet->length &&
	       link->destination[0] == uplink->mac[0] && link->destination[1] == uplink->mac[1] &&
	       link->destination[2] == uplink->mac[2];
}

/* The entries that translate a packet at each hook; NULL where a hook has none. */
struct xdp_entries {
	struct connection *ingress;
	struct connection *egress;
	struct connection *first;
};

/*
 * Find the entries of a packet's connection, and the flow that the kernel would route. False if the
 * packet must go by the stack.
 */
static inline bool xdp_find(struct xdp_packet *packet, struct xdp_entries *entries,
			    struct flow *routed, __u64 *now)
{
	struct connection *ingress = connection_find(&packet->flow), *egress;

	*routed = packet->flow;
	if (ingress) {
		if (!xdp_may_use(ingress, packet))
			return false;
		*routed = ingress->after;
	}
	routed->hook = HOOK_EGRESS;
	*now = bpf_ktime_get_coarse_ns();
	if (ingress && ingress->stack_turn == turn_of(*now))
		return false;
	egress = connection_find(routed);
	if (!egress && xdp_needs_egress(ingress))
		return false;
	if (egress && (!xdp_may_use(egress, packet) || (!ingress && !egress->reply) ||
		       egress->stack_turn == turn_of(*now)))
		return false;
	entries->ingress = ingress;
	entries->egress = egress;
	entries->first = ingress ? ingress : egress;
	return entries->first;
}

/* Note the time in both entries. True if this is the turn's packet for the stack. */
static inline bool xdp_renew_both(const struct xdp_entries *entries, __u64 now)
{
	bool stack = false;

	if (entries->ingress)
		stack = xdp_renew(entries->ingress, now);
	if (entries->egress)
		stack |= xdp_renew(entries->egress, now);
	if (stack)
		COUNT(edge_passed__turn);
	return stack;
}

static inline int xdp_forward(struct xdp_md *context, struct xdp_packet *packet)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	__u32 came_by = context->ingress_ifindex;
	struct bpf_fib_lookup route = {};
	struct xdp_entries entries;
	struct flow routed, after;
	struct settings *settings;
	struct uplink *uplink;
	__u64 now;

	if (!xdp_find(packet, &entries, &routed, &now))
		return XDP_PASS;
	after = entries.egress ? entries.egress->after : routed;

	settings = settings_get();
	uplink = uplinks.lookup(&came_by);
	if (!settings || settings->takeover || !uplink || !xdp_is_ours(data, end, packet, uplink) ||
	    xdp_renew_both(&entries, now))
		return XDP_PASS;
	if (!xdp_route(context, packet, &routed, uplink, &route, entries.first, now) ||
	    !xdp_rewrite(data, end, packet, &after, &route))
		return XDP_PASS;
	if (entries.ingress)
		xdp_count(entries.ingress, packet, end - data);
	if (entries.egress)
		xdp_count(entries.egress, packet, end - data);
	COUNT(edge_forwarded);
	if (route.ifindex == uplink->ifindex && !uplink->redirect)
		return XDP_TX;
	return bpf_redirect(route.ifindex, 0);
}

static inline int xdp_handle(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct xdp_packet packet;

	packet.tcp.flags = 0;
	return xdp_parse(data, end, &packet) ? xdp_forward(context, &packet) : XDP_PASS;
}
