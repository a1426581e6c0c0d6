/*
 * The edge: what comes by an uplink for a backend elsewhere, and the replies, are translated and sent
 * on before the kernel has made an skb of them. Both hooks' translations are made at once, by the
 * same entries, and where the packet goes is asked of the kernel's routes for the flow that it would
 * route: the one between the hooks.
 *
 * Only the middle of a connection is taken. What opens or ends one goes by the stack, as does
 * whatever is in any way unusual, and is left as it came: so netfilter sees every connection that is
 * made, may refuse it, and knows when it is over.
 */

#define EDGE_IPV4_START 0x45 /* version 4, a header without options */

/*
 * Turns of the clock, of 2^34 ns, 17 s. In each of them one packet of a direction goes by the stack:
 * a fib lookup does not tell a neighbour that it is in use, so the kernel would never find out that
 * it is gone; and netfilter would believe the flow to be.
 */
#define TURN_SHIFT 34

struct ethernet {
	__be16 destination[3];
	__be16 source[3];
	__be16 type;
};

/* What is read of a packet before anything is known of its connection. */
struct edge_packet {
	struct flow flow; /* at ingress */
	bool v4;
	__u16 length;	     /* of the IP packet, host order */
	__u32 traffic_class; /* as a fib lookup takes it; of IPv6 with the flow label */
};

static inline __u8 turn_of(__u64 now)
{
	return (__u8)(now >> TURN_SHIFT) | 0x80;
}

static inline bool edge_parse_v4(void *data, void *end, struct edge_packet *packet)
{
	struct ipv4_start *ip = data + ETH_HLEN;
	__be32 *addresses = data + ETH_HLEN + IPV4_SOURCE_OFFSET;

	if (data + ETH_HLEN + IPV4_HEADER_LENGTH > end)
		return false;
	if (ip->version_and_length != EDGE_IPV4_START || ip->ttl <= 1 ||
	    ip->fragment & bpf_htons(IPV4_FRAGMENT_OFFSET | IPV4_MORE_FRAGMENTS))
		return false;
	packet->v4 = true;
	packet->traffic_class = ip->tos;
	packet->length = bpf_ntohs(ip->total_length);
	packet->flow.protocol = ip->protocol;
	address_from_v4(&packet->flow.source, addresses[0]);
	address_from_v4(&packet->flow.destination, addresses[1]);
	return true;
}

static inline bool edge_parse_v6(void *data, void *end, struct edge_packet *packet)
{
	struct ipv6_start *ip = data + ETH_HLEN;
	__be32 *addresses = data + ETH_HLEN + IPV6_SOURCE_OFFSET;
	__u32 length;

	if (data + ETH_HLEN + IPV6_HEADER_LENGTH > end)
		return false;
	length = bpf_ntohs(ip->payload_length) + IPV6_HEADER_LENGTH;
	if (ip->hop_limit <= 1 || length > 0xffff)
		return false;
	packet->v4 = false;
	packet->traffic_class = ip->version_and_flow & bpf_htonl(IPV6_FLOW_INFO);
	packet->length = length;
	packet->flow.protocol = ip->next_header;
	address_from_v6(&packet->flow.source, addresses);
	address_from_v6(&packet->flow.destination, addresses + 4);
	return true;
}

/*
 * Read the ports, and tell whether the packet is from the middle of a flow of TCP or UDP that may be
 * known.
 */
static inline bool edge_parse_transport(void *data, void *end, struct edge_packet *packet, __u32 l4)
{
	__u8 protocol = packet->flow.protocol;
	struct ports *ports = data + l4;
	__u8 *tcp_flags = data + l4 + TCP_FLAGS_OFFSET;

	if (packet->length < l4 - ETH_HLEN + UDP_HEADER_LENGTH)
		return false;
	if (protocol == PROTO_TCP) {
		if (data + l4 + TCP_HEADER_LENGTH > end ||
		    *tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST))
			return false;
	} else if (protocol != PROTO_UDP || data + l4 + UDP_HEADER_LENGTH > end) {
		return false;
	}
	packet->flow.source_port = ports->source;
	packet->flow.destination_port = ports->destination;
	packet->flow.hook = HOOK_INGRESS;
	packet->flow.zero = 0;
	return ports_may_be_known(HOOK_INGRESS, protocol, ports->source, ports->destination) ||
	       ports_may_be_known(HOOK_EGRESS, protocol, ports->source, ports->destination);
}

static inline bool edge_parse(void *data, void *end, struct edge_packet *packet)
{
	struct ethernet *link = data;

	if (data + ETH_HLEN > end)
		return false;
	if (link->type == bpf_htons(ETHERTYPE_IPV4))
		return edge_parse_v4(data, end, packet) &&
		       edge_parse_transport(data, end, packet, ETH_HLEN + IPV4_HEADER_LENGTH);
	if (link->type == bpf_htons(ETHERTYPE_IPV6))
		return edge_parse_v6(data, end, packet) &&
		       edge_parse_transport(data, end, packet, ETH_HLEN + IPV6_HEADER_LENGTH);
	return false;
}

/*
 * Whether an entry translates with nothing else to be done. Of a flow that has had no answer, that
 * is one whose packets have left: its port is chosen, and netfilter has let it pass.
 */
static inline bool edge_may_use(const struct connection *connection, __u8 protocol)
{
	if (connection->fin_sent || connection->fin_received || connection->reset)
		return false;
	return connection->established || (protocol == PROTO_UDP && connection->held &&
					   !connection->reply && !connection->masquerade_pending);
}

/*
 * Whether a packet must not leave as it is after ingress: it is to be masqueraded, or is a reply whose
 * frontend is not known, or is none of ours, or shall first be seen to get through.
 */
static inline bool edge_needs_egress(const struct connection *ingress)
{
	return !ingress || ingress->reply || ingress->masquerade || !ingress->established;
}

/* Note the time as connection_track() does; tell whether this is the turn's packet for the stack. */
static inline bool edge_renew(struct connection *connection, __u64 now)
{
	__u64 seen = connection->seen;

	if (now - seen <= NS_PER_SECOND)
		return false;
	connection->seen = now;
	return seen >> TURN_SHIFT != now >> TURN_SHIFT;
}

/* Ask by which uplink the kernel would send the packet, and to whom; false: by none, or not now. */
static inline bool edge_route(struct xdp_md *context, const struct edge_packet *packet,
			      const struct flow *routed, const struct uplink *uplink,
			      struct bpf_fib_lookup *route, struct connection *first, __u64 now)
{
	struct uplink *out;
	__u32 ifindex;
	long result;

	route_ask(route, routed, packet->v4, uplink->ifindex, packet->traffic_class,
		  packet->length);
	result = bpf_fib_lookup(context, route, sizeof(*route), 0);
	/* The stack finds the neighbour, or says that the packet is too big. */
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH || result == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		COUNT(edge_passed__not_now);
		return false;
	}
	ifindex = route->ifindex;
	out = result ? NULL : uplinks.lookup(&ifindex);
	if (out && out->ifindex == ifindex && (ifindex == uplink->ifindex || out->takes))
		return true;
	/* To this node, a pod of it or into a tunnel: no need to ask again for each packet. */
	first->stack_turn = turn_of(now);
	COUNT(edge_passed__not_by_uplink);
	return false;
}

static inline bool edge_rewrite_transport(void *data, void *end, __u32 l4,
					  const struct flow *before, const struct flow *after,
					  bool v4)
{
	bool tcp = before->protocol == PROTO_TCP;
	__sum16 *checksum = data + l4 + (tcp ? TCP_CHECKSUM_OFFSET : UDP_CHECKSUM_OFFSET);
	struct ports *ports = data + l4;

	if ((void *)(ports + 1) > end || (void *)(checksum + 1) > end)
		return false;
	ports->source = after->source_port;
	ports->destination = after->destination_port;
	/* A UDP checksum of zero means there is none, and must neither appear nor vanish. */
	if (!tcp && !*checksum)
		return true;
	*checksum = checksum_fold((__u16) ~*checksum + flow_difference(before, after, v4));
	if (!tcp && !*checksum)
		*checksum = 0xffff;
	return true;
}

static inline bool edge_rewrite_v4(void *data, void *end, const struct flow *before,
				   const struct flow *after)
{
	struct ipv4_start *ip = data + ETH_HLEN;
	__be32 *addresses = data + ETH_HLEN + IPV4_SOURCE_OFFSET;
	__u64 sum;

	if (data + ETH_HLEN + IPV4_HEADER_LENGTH > end)
		return false;
	sum = (__u16)~ip->checksum + addresses_difference(before, after, 3);
	/* The TTL is the upper half of its word. */
	sum += (__u16)~bpf_htons(0x0100);
	ip->checksum = checksum_fold(sum);
	ip->ttl--;
	addresses[0] = after->source.words[3];
	addresses[1] = after->destination.words[3];
	return edge_rewrite_transport(data, end, ETH_HLEN + IPV4_HEADER_LENGTH, before, after,
				      true);
}

static inline bool edge_rewrite_v6(void *data, void *end, const struct flow *before,
				   const struct flow *after)
{
	struct ipv6_start *ip = data + ETH_HLEN;
	__be32 *addresses = data + ETH_HLEN + IPV6_SOURCE_OFFSET;

	if (data + ETH_HLEN + IPV6_HEADER_LENGTH > end)
		return false;
	ip->hop_limit--;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		addresses[i] = after->source.words[i];
		addresses[4 + i] = after->destination.words[i];
	}
	return edge_rewrite_transport(data, end, ETH_HLEN + IPV6_HEADER_LENGTH, before, after,
				      false);
}

static inline bool edge_rewrite(void *data, void *end, const struct edge_packet *packet,
				const struct flow *after, const struct bpf_fib_lookup *route)
{
	struct ethernet *link = data;

	if (data + ETH_HLEN > end)
		return false;
	__builtin_memcpy(link->destination, route->dmac, 6);
	__builtin_memcpy(link->source, route->smac, 6);
	return packet->v4 ? edge_rewrite_v4(data, end, &packet->flow, after) :
			    edge_rewrite_v6(data, end, &packet->flow, after);
}

static inline void edge_count(const struct connection *connection, __u32 bytes)
{
	if (connection->counters)
		count_packet(connection->counters, connection->reply, bytes);
}

/* Whether a frame is whole, and for this machine: a port of a switch may show others, too. */
static inline bool edge_is_ours(void *data, void *end, const struct edge_packet *packet,
				const struct uplink *uplink)
{
	struct ethernet *link = data;

	return data + ETH_HLEN <= end && end - data >= ETH_HLEN + packet->length &&
	       link->destination[0] == uplink->mac[0] && link->destination[1] == uplink->mac[1] &&
	       link->destination[2] == uplink->mac[2];
}

static inline int edge_forward(struct xdp_md *context, struct edge_packet *packet)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct connection *ingress = connection_find(&packet->flow), *egress, *first;
	__u32 came_by = context->ingress_ifindex;
	struct flow routed = packet->flow, after;
	__u8 protocol = packet->flow.protocol;
	struct bpf_fib_lookup route = {};
	struct settings *settings;
	struct uplink *uplink;
	bool stack = false;
	__u64 now;

	if (ingress) {
		if (!edge_may_use(ingress, protocol))
			return XDP_PASS;
		routed = ingress->after;
	}
	routed.hook = HOOK_EGRESS;
	now = bpf_ktime_get_coarse_ns();
	if (ingress && ingress->stack_turn == turn_of(now))
		return XDP_PASS;
	egress = connection_find(&routed);
	if (!egress && edge_needs_egress(ingress))
		return XDP_PASS;
	if (egress && (!edge_may_use(egress, protocol) || (!ingress && !egress->reply) ||
		       egress->stack_turn == turn_of(now)))
		return XDP_PASS;
	first = ingress ? ingress : egress;
	if (!first)
		return XDP_PASS;
	after = egress ? egress->after : routed;

	settings = settings_get();
	uplink = uplinks.lookup(&came_by);
	if (!settings || settings->settling || !uplink || !edge_is_ours(data, end, packet, uplink))
		return XDP_PASS;
	if (ingress)
		stack = edge_renew(ingress, now);
	if (egress)
		stack |= edge_renew(egress, now);
	if (stack) {
		COUNT(edge_passed__turn);
		return XDP_PASS;
	}
	if (!edge_route(context, packet, &routed, uplink, &route, first, now) ||
	    !edge_rewrite(data, end, packet, &after, &route))
		return XDP_PASS;
	if (ingress)
		edge_count(ingress, end - data);
	if (egress)
		edge_count(egress, end - data);
	COUNT(edge_forwarded);
	if (route.ifindex == uplink->ifindex && !uplink->redirect)
		return XDP_TX;
	return bpf_redirect(route.ifindex, 0);
}

static inline int edge_packet(struct xdp_md *context)
{
	void *data = (void *)(long)context->data;
	void *end = (void *)(long)context->data_end;
	struct edge_packet packet;

	return edge_parse(data, end, &packet) ? edge_forward(context, &packet) : XDP_PASS;
}
