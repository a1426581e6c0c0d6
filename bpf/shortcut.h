/*
 * The fast path: a translated packet goes straight to where it leaves, by the routes and neighbours of
 * the kernel but past the rest of its stack. Whoever watches connections there, as conntrack does,
 * must see a connection from its first packet to its last or never: a FIN out of nowhere is invalid
 * to it. So its first packet decides for the whole connection: whether both of its ways, there and
 * back, can be taken so. `shortcut` of an entry is the interface by which its packets come then, and
 * no other: that stands for a reverse path filter.
 *
 * What the stack would answer or cut in pieces (a last hop, a packet that is too long) it still gets.
 */

#define PACKET_HOST 0 /* sent to this node's own hardware address */

#define AF_INET 2
#define AF_INET6 10

#define IPV4_DSCP 0xfc
#define IPV6_FLOW_INFO 0x0fffffff
#define TCP_LENGTH_OFFSET 12

#define MAC_BYTES 12 /* both addresses of an Ethernet header, the destination first */

/* The answers of the routes lie with the packet, in bytes whose layout is the kernel's. */
static inline struct bpf_fib_lookup *route_of(struct packet *packet)
{
	return (struct bpf_fib_lookup *)packet->route;
}

static inline struct bpf_fib_lookup *route_back(struct packet *packet)
{
	return (struct bpf_fib_lookup *)packet->route_back;
}

static inline enum way way_of(struct __sk_buff *skb, const struct settings *settings,
			      const struct connection *connection)
{
	if (!settings->fast_path || settings->settling || connection->shortcut != skb->ifindex)
		return BY_STACK;
	return connection->reply || connection->masquerade ? BY_SHORTCUT_AGAIN : BY_SHORTCUT;
}

/*
 * Replies that were not masqueraded are translated as they leave and nothing knows them as they come,
 * but on the fast path. They stay as they are until then.
 */
static inline struct connection *shortcut_reply(struct __sk_buff *skb,
						const struct settings *settings, struct flow *flow)
{
	struct connection *leaving;

	if (!settings->fast_path || settings->settling)
		return NULL;
	flow->hook = HOOK_EGRESS;
	leaving = connection_find(flow);
	return leaving && leaving->reply && leaving->shortcut == skb->ifindex ? leaving : NULL;
}

/* The same of a packet, which stays as it is until it leaves. */
static inline struct connection *
shortcut_packet(struct __sk_buff *skb, const struct settings *settings, struct packet *packet)
{
	if (packet->reuse || tcp_opens(packet->tcp_flags))
		return NULL;
	packet->after = packet->flow;
	return shortcut_reply(skb, settings, &packet->after);
}

/* Put the question how `flow` is routed; all else of `route` must be zero. */
static inline void route_ask(struct bpf_fib_lookup *route, const struct flow *flow, bool v4,
			     __u32 comes_by, __u32 traffic_class, __u16 length)
{
	route->l4_protocol = flow->protocol;
	route->sport = flow->source_port;
	route->dport = flow->destination_port;
	route->tot_len = length;
	route->ifindex = comes_by;
	if (v4) {
		route->family = AF_INET;
		route->tos = traffic_class;
		route->ipv4_src = flow->source.words[3];
		route->ipv4_dst = flow->destination.words[3];
	} else {
		route->family = AF_INET6;
		route->flowinfo = traffic_class;
		__builtin_memcpy(route->ipv6_src, flow->source.words, 16);
		__builtin_memcpy(route->ipv6_dst, flow->destination.words, 16);
	}
}

/*
 * Ask the kernel how `flow` is routed that came by interface `comes_by`: give the interface by which it
 * leaves. NULL unless it is forwarded, in one piece, by one that takes part.
 */
static inline struct interface *route_find(struct __sk_buff *skb, struct bpf_fib_lookup *route,
					   const struct flow *flow, bool v4, __u32 comes_by,
					   __u32 traffic_class, __u16 length, bool *neighbour)
{
	struct interface *leaves_by;
	long result;

	__builtin_memset(route, 0, sizeof(*route));
	route_ask(route, flow, v4, comes_by, traffic_class, length);
	result = bpf_fib_lookup(skb, route, sizeof(*route), 0);
	/* An unknown neighbour is no reason to bother the stack: whoever sends to it will ask. */
	if (result != BPF_FIB_LKUP_RET_SUCCESS && result != BPF_FIB_LKUP_RET_NO_NEIGH)
		return NULL;
	leaves_by = interfaces.lookup(&route->ifindex);
	*neighbour = result == BPF_FIB_LKUP_RET_SUCCESS;
	return leaves_by && leaves_by->shortcut ? leaves_by : NULL;
}

static inline bool in_pod_range(const struct settings *settings, const struct address *address,
				bool v4)
{
	if (v4)
		return settings->detect_pods_v4 &&
		       address_within(address, &settings->pod_network_v4, &settings->pod_mask_v4);
	return settings->detect_pods_v6 &&
	       address_within(address, &settings->pod_network_v6, &settings->pod_mask_v6);
}

/* What the route of a packet depends on beside its flow; false for one that the stack must see. */
static inline bool routable(struct __sk_buff *skb, const struct packet *packet,
			    __u32 *traffic_class, __u16 *length)
{
	__u8 hops;

	if (skb->pkt_type != PACKET_HOST)
		return false;
	if (packet->v4) {
		struct ipv4_start ip;

		if (packet->l4 - packet->l3 != IPV4_HEADER_LENGTH ||
		    !read_bytes(skb, packet->l3, &ip, sizeof(ip)))
			return false;
		*traffic_class = ip.tos & IPV4_DSCP;
		*length = bpf_ntohs(ip.total_length);
		hops = ip.ttl;
	} else {
		struct ipv6_start ip;

		if (packet->l4 - packet->l3 != IPV6_HEADER_LENGTH ||
		    !read_bytes(skb, packet->l3, &ip, sizeof(ip)))
			return false;
		*traffic_class = ip.version_and_flow & bpf_htonl(IPV6_FLOW_INFO);
		*length = IPV6_HEADER_LENGTH + bpf_ntohs(ip.payload_length);
		hops = ip.hop_limit;
	}
	if (hops <= 1)
		return false;
	/* Many packets in one: what counts is the length that each of them will have. */
	if (skb->gso_size) {
		__u32 header = UDP_HEADER_LENGTH;

		if (packet->flow.protocol == PROTO_TCP) {
			__u8 words;

			if (!read_bytes(skb, packet->l4 + TCP_LENGTH_OFFSET, &words, sizeof(words)))
				return false;
			header = (words >> 4) * 4;
		}
		*length = packet->l4 - packet->l3 + header + skb->gso_size;
	}
	return *length != 0;
}

/* Where a packet of the fast path leaves; its hop is counted. NULL when the stack has to see it. */
static inline struct interface *shortcut_find(struct __sk_buff *skb, struct packet *packet)
{
	struct interface *comes_by, *leaves_by;
	__u32 traffic_class, ifindex = skb->ifindex;
	bool neighbour;
	__u16 length;

	/* It may have got a program of somebody's, who wants to see what comes by it. */
	comes_by = interfaces.lookup(&ifindex);
	if (!comes_by || !comes_by->shortcut || !routable(skb, packet, &traffic_class, &length))
		return NULL;
	leaves_by = route_find(skb, route_of(packet), &packet->after, packet->v4, skb->ifindex,
			       traffic_class, length, &neighbour);
	if (!leaves_by)
		return NULL;
	packet->straight = leaves_by->peer && neighbour;
	packet->hop = 1;
	return leaves_by;
}

/*
 * Whether the connection that `packet` opens, to be routed as `packet->after`, takes the fast path, and
 * between which interfaces. CNIs masquerade what leaves the range of pods, in the stack: only what
 * stays within it, or is masqueraded by us, may go past that.
 */
static inline bool shortcut_decide(struct __sk_buff *skb, const struct settings *settings,
				   struct packet *packet)
{
	struct flow *routed = &packet->after;
	struct interface *leaves_by;
	bool neighbour;
	struct flow back;

	if (!settings->fast_path || settings->settling || packet->fragment ||
	    packet->flow.protocol == PROTO_SCTP)
		return false;
	leaves_by = shortcut_find(skb, packet);
	if (!leaves_by)
		return false;
	if (!leaves_by->peer && !packet->choice.masquerade &&
	    !(in_pod_range(settings, &routed->source, packet->v4) &&
	      in_pod_range(settings, &routed->destination, packet->v4)))
		return false;
	packet->ends.client = skb->ifindex;
	packet->ends.backend = route_of(packet)->ifindex;
	flow_reverse(&back, routed, 0);
	return route_find(skb, route_back(packet), &back, packet->v4, packet->ends.backend, 0, 0,
			  &neighbour) &&
	       route_back(packet)->ifindex == skb->ifindex;
}

/*
 * On the way straight to a pod no program of ours is met any more: what it would do is done here.
 * What is not everyday goes the longer way, by the pod's interface, and meets it. `leaving` is the
 * entry, where that is known already.
 */
static inline void translate_again(struct __sk_buff *skb, struct packet *packet,
				   struct connection *leaving)
{
	if (!packet->straight)
		return;
	packet->after.hook = HOOK_EGRESS;
	if (!leaving)
		leaving = connection_find(&packet->after);
	if (!leaving || !leaving->established || tcp_opens(packet->tcp_flags)) {
		packet->straight = 0;
		return;
	}
	if (leaving->counters)
		count_packet(leaving->counters, leaving->reply, skb->len);
	connection_track(&packet->after, leaving, packet->tcp_flags);
	packet->after = leaving->after;
}

/* bcc declares the helper without the size. */
static long (*redirect_neigh)(__u32 ifindex, struct bpf_redir_neigh *next, int size,
			      __u64 flags) = (void *)BPF_FUNC_redirect_neigh;

static inline int leave_by_neighbour(struct packet *packet)
{
	struct bpf_fib_lookup *route = route_of(packet);
	struct bpf_redir_neigh next = {.nh_family = route->family};

	__builtin_memcpy(next.ipv6_nh, route->ipv6_dst, sizeof(next.ipv6_nh));
	return redirect_neigh(route->ifindex, &next, sizeof(next), 0);
}

/* On the far side there may be a bridge, with a virtual machine behind it. */
static inline int leave_by_peer(struct __sk_buff *skb, struct packet *packet)
{
	struct bpf_fib_lookup *route = route_of(packet);
	__u8 addresses[MAC_BYTES];

	__builtin_memcpy(addresses, route->dmac, MAC_BYTES / 2);
	__builtin_memcpy(addresses + MAC_BYTES / 2, route->smac, MAC_BYTES / 2);
	if (bpf_skb_store_bytes(skb, 0, addresses, MAC_BYTES, 0))
		return rewritten(-1);
	return bpf_redirect_peer(route->ifindex, 0);
}

static inline int shortcut_leave(struct __sk_buff *skb, struct packet *packet)
{
	COUNT(fast_forwarded);
	return packet->straight ? leave_by_peer(skb, packet) : leave_by_neighbour(packet);
}
