/*
 * Source ports of our own making. They come from a range that the agent keeps apart from local
 * sockets and NodePorts, and one is taken when the reply's entry is: inserting decides.
 */

#define EAGAIN 11
#define EEXIST 17

/* The verifier walks every try: its patience, not the packet's, sets these. */
#define SOURCE_PORT_TRIES 8
#define MASQUERADE_PORT_TRIES 4
#define MASQUERADE_ROUNDS 8 /* of so many tries */

/* Ports in use come in runs, so tries are strides apart; an odd stride leaves none out of 2^n. */
struct port_search {
	__u32 number;
	__u32 stride;
	__u32 round;
};

static inline struct port_search port_search_begin(void)
{
	struct port_search search = {
		.number = bpf_get_prandom_u32(),
		.stride = bpf_get_prandom_u32() | 1,
	};

	return search;
}

static inline __be16 port_search_next(struct port_search *search, const struct settings *settings)
{
	search->number += search->stride;
	return bpf_htons(settings->masquerade_first + search->number % settings->masquerade_ports);
}

/* The last acknowledgement of a connection may still be on its way when both sides have closed. */
static inline bool reply_abandoned(const struct connection *reply)
{
	__s64 idle = connection_idle(reply, bpf_ktime_get_coarse_ns());

	if (connection_closed(reply))
		return idle > LINGER_SECONDS * NS_PER_SECOND;
	return !reply->established && idle > UNANSWERED_SECONDS * NS_PER_SECOND;
}

/*
 * Take `key` for `reply` unless a live connection has it. `reopen` also takes it from a closed one,
 * whose peer may still be in TIME_WAIT, and from one that was never established. Else -EEXIST, or
 * another error when there is no room for it.
 */
static inline int reply_take(struct flow *key, struct connection *reply, bool reopen)
{
	struct connection *existing = connection_find(key);

	if (existing) {
		if (!reopen || !reply_abandoned(existing))
			return -EEXIST;
		connection_remove(key, existing);
	}
	return connection_take(key, reply);
}

/*
 * Make `routed` (client -> backend, between the hooks) unlike every other flow, by another source
 * port if need be, and take the key of its replies.
 */
static inline bool routed_flow_take(const struct settings *settings, struct flow *routed,
				    struct connection *reply)
{
	struct port_search search = port_search_begin();
	struct flow key;

#pragma clang loop unroll(disable)
	for (int i = 0; i < SOURCE_PORT_TRIES; i++) {
		int error = -EEXIST;

		flow_reverse(&key, routed, HOOK_EGRESS);
		if (!direct_flow_exists(routed))
			error = reply_take(&key, reply, true);
		if (!error) {
			if (i)
				COUNT(source_ports_changed);
			return true;
		}
		if (error != -EEXIST) {
			COUNT(dropped__connections_full);
			return false;
		}
		routed->source_port = port_search_next(&search, settings);
	}
	COUNT(dropped__source_ports_exhausted);
	return false;
}

/* Whether a socket of this node would be answered by `reply`. */
static inline bool socket_expects(struct __sk_buff *skb, const struct flow *reply)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;
	__u32 size;

	if (address_is_v4(&reply->source)) {
		tuple.ipv4.saddr = reply->source.words[3];
		tuple.ipv4.daddr = reply->destination.words[3];
		tuple.ipv4.sport = reply->source_port;
		tuple.ipv4.dport = reply->destination_port;
		size = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &reply->source, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &reply->destination, 16);
		tuple.ipv6.sport = reply->source_port;
		tuple.ipv6.dport = reply->destination_port;
		size = sizeof(tuple.ipv6);
	}
	if (reply->protocol == PROTO_TCP)
		socket = bpf_sk_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	else if (reply->protocol == PROTO_UDP)
		socket = bpf_sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	else
		return false; /* no helper knows its sockets */
	if (!socket)
		return false;
	bpf_sk_release(socket);
	return true;
}

/*
 * Give `wire` (node -> backend) a source port that is unique for its addresses, and take the key of
 * its replies. Ports of closed connections are a second choice. -EAGAIN: none was free in this round.
 */
static inline int masquerade_port_take(struct __sk_buff *skb, const struct settings *settings,
				       struct port_search *search, struct flow *wire,
				       struct connection *reply)
{
	struct flow key;

	if (!search->round)
		*search = port_search_begin();
#pragma clang loop unroll(disable)
	for (int i = 0; i < MASQUERADE_PORT_TRIES; i++) {
		int error;

		wire->source_port = port_search_next(search, settings);
		flow_reverse(&key, wire, HOOK_INGRESS);
		if (socket_expects(skb, &key))
			continue;
		error = reply_take(&key, reply, search->round >= MASQUERADE_ROUNDS / 2);
		if (error != -EEXIST) {
			if (error)
				COUNT(dropped__connections_full);
			return error;
		}
	}
	if (++search->round < MASQUERADE_ROUNDS)
		return -EAGAIN;
	COUNT(dropped__masquerade_ports_exhausted);
	return -EEXIST;
}
