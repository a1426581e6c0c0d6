/*
 * Connections: what each direction of a translated flow looks like at a hook, and what it must look
 * like after it. Entries come in pairs, forward and reply, and each leads to the other:
 *
 *	ingress  client -> frontend            becomes  client -> backend
 *	egress   backend -> client             becomes  frontend -> client
 *
 * and, for a masqueraded connection, a second pair around the wire:
 *
 *	egress   client -> backend             becomes  node -> backend
 *	ingress  backend -> node               becomes  backend -> client
 *
 * A flow is established when both sides have answered each other: TCP when the client acknowledges
 * the server's SYN, UDP with the first reply. Nothing is evicted from `connections`. While flows that
 * are not established are few, they are held there too, which costs them least. Those beyond that
 * live in `new_connections`, from which the kernel evicts, until they are established and move. A
 * flood of first packets, though every one be answered, can so push out other first packets, but
 * never a connection that works.
 */

struct connection {
	struct flow after;
	__u64 created;	/* ns, CLOCK_MONOTONIC */
	__u64 seen;	/* the same, to about a second */
	__u32 service;	/* 0: none, a direct flow whose port had to change */
	__u32 counters; /* of the backend; 0: not counted by this entry */
	__u8 reply;
	__u8 replied; /* the server has been heard */
	__u8 established;
	__u8 fin_sent; /* by the sender of this direction */
	__u8 fin_received;
	__u8 reset;
	__u8 masquerade;	 /* this forward flow is masqueraded when it leaves */
	__u8 masquerade_pending; /* `after` is chosen when the first packet leaves */
	__u8 held;		 /* in `connections` though not established, and counted as such */
	__u8 stack_turn;	 /* the turn, see edge.h, in which XDP leaves it to the stack */
	__u16 tick;	/* of the kernel's coarsest clock when `seen` was last thought of */
	__u32 shortcut; /* the interface by which packets take the fast path; 0: they do not */
};

MAP("hash", struct flow, struct connection, connections, MAX_CONNECTIONS, BPF_F_NO_PREALLOC);
MAP("lru_hash", struct flow, struct connection, new_connections, MAX_NEW_CONNECTIONS, 0);

/* Pairs that are held. The agent counts again now and then: racing packets may count one twice. */
MAP("array", __u32, __s64, half_open, 1, 0);

#define MAX_HALF_OPEN (MAX_CONNECTIONS / 32)

/* A flow that is not established and silent for so long keeps no port from others. */
#define UNANSWERED_SECONDS 5

/* And one that both sides have closed. */
#define LINGER_SECONDS 2

static inline __s64 *half_open_get(void)
{
	__u32 only = 0;

	return half_open.lookup(&only);
}

/* Whether one more pair may be held; it is counted then. */
static inline bool half_open_take(void)
{
	__s64 *pairs = half_open_get();

	if (!pairs || *pairs >= MAX_HALF_OPEN)
		return false;
	__sync_fetch_and_add(pairs, 1);
	return true;
}

static inline void half_open_release(void)
{
	__s64 *pairs = half_open_get();

	if (pairs)
		__sync_fetch_and_add(pairs, -1);
}

static inline bool connection_closed(const struct connection *connection)
{
	return connection->reset || (connection->fin_sent && connection->fin_received);
}

/* Nanoseconds since the last packet; negative when another CPU has seen one after `now` was read. */
static inline __s64 connection_idle(const struct connection *connection, __u64 now)
{
	return now - connection->seen;
}

/* A clock that costs next to nothing; a tick is a tenth of a second to a second, by CONFIG_HZ. */
static inline __u16 tick_now(void)
{
	return bpf_jiffies64() >> 7;
}

static inline struct connection *connection_find(struct flow *flow)
{
	struct port_filter *filter = ports_may_be_known(flow->hook, flow->protocol,
							flow->source_port, flow->destination_port);
	struct connection *connection;

	if (!filter)
		return NULL;
	connection = connections.lookup(flow);
	if (connection || !filter->overflowed)
		return connection;
	return new_connections.lookup(flow);
}

/* Write an entry of a flow that is not established. An error is a full table's, or a lack of memory. */
static inline int connection_note(struct flow *flow, struct connection *connection)
{
	flow_note(flow, connection->reply, !connection->held);
	return connection->held ? connections.update(flow, connection) :
				  new_connections.update(flow, connection);
}

/* The same for a key that must be nobody's: inserting decides who gets it. */
static inline int connection_take(struct flow *flow, struct connection *connection)
{
	flow_note(flow, connection->reply, !connection->held);
	return connection->held ? connections.insert(flow, connection) :
				  new_connections.insert(flow, connection);
}

static inline void pair_of(struct flow *partner, const struct flow *flow, const struct flow *after)
{
	flow_reverse(partner, after, other_hook(flow->hook));
}

static inline void entry_delete(struct flow *flow)
{
	struct port_filter *filter = port_filter_get(flow->hook, flow->protocol);

	connections.delete(flow);
	if (!filter || filter->overflowed)
		new_connections.delete(flow);
}

/* Remove the pair that `flow` belongs to. `connection`, its entry, must not be used afterwards. */
static inline void connection_remove(struct flow *flow, struct connection *connection)
{
	struct flow partner;

	pair_of(&partner, flow, &connection->after);
	if (connection->held)
		half_open_release();
	entry_delete(flow);
	entry_delete(&partner);
}

/* Remove the masquerade of what leaves as `after`: whoever does next is another connection. */
static inline void masquerade_forget(const struct flow *after)
{
	struct flow routed = *after;
	struct connection *masquerade;

	routed.hook = HOOK_EGRESS;
	masquerade = connection_find(&routed);
	if (masquerade && !masquerade->reply)
		connection_remove(&routed, masquerade);
}

/* Begin again on both entries of a closed pair, with the same translation. */
static inline void connection_reopen(const struct flow *flow, struct connection *connection)
{
	struct connection *other;
	struct flow partner;

	pair_of(&partner, flow, &connection->after);
	other = connection_find(&partner);
	connection->fin_sent = connection->fin_received = connection->reset = 0;
	if (other)
		other->fin_sent = other->fin_received = other->reset = 0;
}

/* Note the time, and FIN and RST on both entries of the pair, so that each alone tells the state. */
static inline void connection_track(const struct flow *flow, struct connection *connection,
				    __u8 tcp_flags)
{
	struct connection *other;
	__u16 tick = tick_now();
	struct flow partner;

	if (tick != connection->tick) {
		__u64 now = bpf_ktime_get_coarse_ns();

		connection->tick = tick;
		if (now - connection->seen > NS_PER_SECOND)
			connection->seen = now;
	}
	if (!(tcp_flags & (TCP_FIN | TCP_RST)))
		return;
	connection->seen = bpf_ktime_get_coarse_ns();
	pair_of(&partner, flow, &connection->after);
	other = connection_find(&partner);
	if (tcp_flags & TCP_RST) {
		connection->reset = 1;
		if (other)
			other->reset = 1;
		return;
	}
	connection->fin_sent = 1;
	if (other)
		other->fin_received = 1;
}

/* Without its other half a flow would not be understood: forget it, and let the client ask again. */
static inline void connection_forget_half(struct flow *flow, struct connection *connection)
{
	COUNT(dropped__evicted);
	if (connection->held)
		half_open_release();
	entry_delete(flow);
}

/* Move a pair to where nothing is evicted; false when there is no room. */
static inline bool connection_move(struct flow *flow, struct connection *connection,
				   struct flow *partner, struct connection *other)
{
	if (connections.update(partner, other) || connections.update(flow, connection)) {
		/* As if the packet had not come: it may come again, and find room. */
		connections.delete(partner);
		COUNT(dropped__connections_full);
		return false;
	}
	new_connections.delete(partner);
	new_connections.delete(flow);
	return true;
}

/*
 * Both sides have been heard. False when the pair is not whole or cannot be kept; the packet must
 * then not pass, for nothing would translate the rest of its flow.
 */
static inline bool connection_establish(struct flow *flow, struct connection *connection)
{
	struct connection *other;
	struct flow partner;

	pair_of(&partner, flow, &connection->after);
	other = connection_find(&partner);
	if (!other) {
		connection_forget_half(flow, connection);
		return false;
	}
	/* An acknowledgement of nothing: the server has not been heard. */
	if (!connection->reply && !other->replied)
		return true;
	connection->replied = other->replied = 1;
	connection->established = other->established = 1;
	if (connection->held) {
		connection->held = other->held = 0;
		half_open_release();
		return true;
	}
	if (connection_move(flow, connection, &partner, other))
		return true;
	connection->established = other->established = 0;
	return false;
}

/*
 * A packet of a flow that is not established. Of TCP, only the client's acknowledgement proves that
 * the client is where its packets say; half-open connections must not take room from others.
 */
static inline bool connection_progress(struct flow *flow, struct connection *connection,
				       __u8 tcp_flags)
{
	if (flow->protocol != PROTO_TCP)
		return !connection->reply || connection_establish(flow, connection);
	if (tcp_flags & TCP_RST)
		return true;
	if (connection->reply) {
		struct flow partner;

		if (!connection->held) {
			pair_of(&partner, flow, &connection->after);
			if (!connection_find(&partner)) {
				connection_forget_half(flow, connection);
				return false;
			}
		}
		connection->replied = 1;
		return true;
	}
	return tcp_flags & TCP_SYN || connection_establish(flow, connection);
}
