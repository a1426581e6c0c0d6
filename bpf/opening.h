/* The first packet of a connection: what it is to become, and what has to be written for the rest. */

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

/* The first packet through a frontend: how the connection is going to travel. */
static inline void plan_connection(struct __sk_buff *skb, const struct settings *settings,
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
	if (!shortcut_decide(skb, settings, packet))
		packet->ends.client = packet->ends.backend = packet->hop = 0;
}

/* Write both its directions, and what the way out has to do. False when the packet must not pass. */
static inline bool open_connection(const struct settings *settings, struct packet *packet,
				   const struct choice *choice)
{
	struct flow *after = &packet->after;
	struct connection entry = {};

	entry.created = bpf_ktime_get_coarse_ns();
	entry.seen = entry.created;
	entry.service = choice->service;
	entry.counters = choice->backend.counters;
	entry.reply = 1;
	entry.shortcut = packet->ends.backend;
	entry.held = half_open_take();
	flow_reverse(&entry.after, &packet->flow, 0);
	if (!routed_flow_take(settings, after, &entry)) {
		if (entry.held)
			half_open_release();
		return false;
	}

	entry.reply = 0;
	entry.after = *after;
	entry.masquerade = choice->masquerade;
	entry.shortcut = packet->ends.client;
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
static inline int direct_flow(struct __sk_buff *skb, struct packet *packet)
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
		/* Datagrams are all first packets here; those of a flow already noted tell nothing. */
		if (endpoint_known(&packet->flow.destination, packet->flow.destination_port,
				   packet->flow.protocol) &&
		    (direct_flow_note(&packet->flow) || packet->flow.protocol == PROTO_TCP))
			hear_socket(skb, packet, true);
		return VERDICT_NONE;
	}
	hear_socket(skb, packet, true);
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
	if (!destination_served(&packet->flow.destination))
		return direct_flow(skb, packet);
	packet->client.address = packet->flow.source;
	packet->client.class = client_class(settings, skb->ifindex, &packet->client.address);
	key.address = packet->flow.destination;
	key.port = packet->flow.destination_port;
	key.protocol = packet->flow.protocol;
	__builtin_memset(&packet->choice, 0, sizeof(packet->choice));
	verdict = choose_backend(&key, &packet->client, &packet->choice);
	count_refusal(verdict);
	if (verdict == VERDICT_NONE)
		return direct_flow(skb, packet);
	if (verdict == VERDICT_DNAT)
		hear_socket(skb, packet, false);
	return verdict;
}
