/* The packets after the first: their state, and their way out. */

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
	entry.shortcut = pending->shortcut ? skb->ifindex : 0;
	flow_reverse(&entry.after, &packet->flow, 0);
	error = masquerade_port_take(skb, settings, &packet->search, &wire, &entry);
	if (error)
		return error;
	pending->after = wire;
	pending->masquerade_pending = 0;
	return 0;
}

/*
 * Make of a packet what it must become, and let it go: by the fast path, as far as `way` allows it. A
 * first packet's route is known by then. `leaving` is as translate_again() takes it.
 */
static inline int finish(struct __sk_buff *skb, struct packet *packet, enum way way,
			 struct connection *leaving)
{
	if (packet->fragment || packet->flow.protocol == PROTO_SCTP)
		return step(skb, STEP_REWRITE);
	if (way != BY_STACK && (packet->hop || shortcut_find(skb, packet)) &&
	    way == BY_SHORTCUT_AGAIN)
		translate_again(skb, packet, leaving);
	if (rewrite(skb, packet))
		return rewritten(-1);
	return way != BY_STACK && packet->hop ? shortcut_leave(skb, packet) : TC_ACT_UNSPEC;
}

/* The same where few packets come by. */
static inline int finish_rare(struct __sk_buff *skb, struct packet *packet, enum way way)
{
	packet->way = way;
	return way == BY_STACK ? finish(skb, packet, BY_STACK, NULL) : step(skb, STEP_SHORTCUT);
}

/* A packet of a known connection: bring its state forward. False when it must not pass. */
static inline bool follow(struct __sk_buff *skb, struct packet *packet,
			  struct connection *connection)
{
	packet->after = connection->after;
	if (connection->counters)
		count_packet(connection->counters, connection->reply, skb->len);
	if (packet->fragment == FRAGMENT_LATER)
		return true;
	connection_track(&packet->flow, connection, packet->tcp_flags);
	return connection->established ||
	       connection_progress(&packet->flow, connection, packet->tcp_flags);
}

/*
 * Whether there is more to do than follow(): a port to choose, a pair to move, or, for the first
 * packet after a pause, to see whether what it needs on the way out was collected meanwhile.
 */
static inline bool needs_care(const struct connection *connection, __u8 hook)
{
	if (!connection->established && (!connection->held || connection->masquerade_pending))
		return true;
	return hook == HOOK_INGRESS && connection->masquerade && connection->tick != tick_now() &&
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
