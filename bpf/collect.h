/*
 * Removing connections that are over. The agent reads the tables and proposes flows; whether one is
 * really over is decided here, next to the deletion, on what the entries say at that moment.
 */

#define COLLECT_FLOWS 16

/* What the agent sends as a test packet: this header, then up to COLLECT_FLOWS flows. */
struct collect_header {
	__u8 ethernet[ETH_HLEN];
	__u8 flows;
	__u8 force;   /* remove them whatever state they are in, and how they are masqueraded */
	__u8 crowded; /* closed and half-open connections go early */
	__u8 zero;
};

static inline __s64 connection_lifetime(const struct settings *settings,
					const struct connection *connection, __u8 protocol,
					bool crowded)
{
	__u32 seconds = protocol == PROTO_SCTP ? settings->sctp_seconds : settings->udp_seconds;

	/* Closed: its last acknowledgement may still be on its way, whatever the crowd. */
	if (protocol == PROTO_TCP && connection_closed(connection))
		seconds = crowded ? LINGER_SECONDS : settings->tcp_closed_seconds;
	else if (!connection->established)
		seconds = crowded ? UNANSWERED_SECONDS : settings->half_open_seconds;
	else if (protocol == PROTO_TCP && (connection->fin_sent || connection->fin_received))
		seconds = settings->tcp_half_closed_seconds;
	else if (protocol == PROTO_TCP)
		seconds = settings->tcp_established_seconds;
	return seconds * NS_PER_SECOND;
}

static inline bool connection_over(const struct settings *settings, struct flow *flow,
				   struct connection *connection, __u64 now, bool crowded)
{
	__s64 lifetime = connection_lifetime(settings, connection, flow->protocol, crowded);
	struct connection *other;
	struct flow partner;

	if (connection_idle(connection, now) < lifetime)
		return false;
	pair_of(&partner, flow, &connection->after);
	other = connection_find(&partner);
	return !other || connection_idle(other, now) >= lifetime;
}

static inline int collect_flows(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	__u64 now = bpf_ktime_get_coarse_ns();
	struct collect_header header;
	int removed = 0;

	if (!settings || bpf_skb_load_bytes(skb, 0, &header, sizeof(header)))
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < COLLECT_FLOWS; i++) {
		struct connection *connection;
		struct flow flow;

		if (i >= header.flows ||
		    bpf_skb_load_bytes(skb, sizeof(header) + i * sizeof(flow), &flow, sizeof(flow)))
			break;
		connection = connection_find(&flow);
		if (!connection)
			continue;
		if (!header.force &&
		    !connection_over(settings, &flow, connection, now, header.crowded))
			continue;
		if (header.force && connection->reply) {
			struct flow routed;

			flow_reverse(&routed, &flow, HOOK_EGRESS);
			masquerade_forget(&routed);
		}
		connection_remove(&flow, connection);
		removed++;
	}
	return removed;
}
