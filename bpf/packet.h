/*
 * A packet as far as the walk looks at it. It lies in a map, one row per CPU, not on the stack: the
 * stack is small, and what the verifier cannot see into does not multiply the paths it follows.
 */

struct packet {
	struct flow flow;
	struct flow after; /* what `flow` must become */
	__u32 l3; /* offset of the IP header */
	__u32 l4; /* offset of the transport header */
	__u8 v4;
	__u8 tcp_flags;
	__u8 icmp_error;
	__u8 zero[5];
};

MAP("percpu_array", __u32, struct packet, packets, 1, 0);

static inline struct packet *packet_get(void)
{
	__u32 only = 0;

	return packets.lookup(&only);
}

static inline bool tcp_opens(const struct packet *packet)
{
	return (packet->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Whether the packet may belong to a connection that has not been answered yet. */
static inline bool may_be_new(const struct packet *packet)
{
	return packet->flow.protocol != PROTO_TCP || packet->tcp_flags & (TCP_SYN | TCP_RST);
}

/*
 * Read an IP header at `offset` into the addresses and protocol of `flow`. Returns the header's
 * length, or 0 for what is not looked at: other protocols, and fragments after the first, which
 * carry no ports.
 */
static inline __u32 parse_ip(struct __sk_buff *skb, __u32 offset, bool v4, struct flow *flow)
{
	if (v4) {
		struct ipv4_header ip;

		if (bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)))
			return 0;
		if (ip.version_and_length >> 4 != 4 || ip.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET))
			return 0;
		address_from_v4(&flow->source, ip.source);
		address_from_v4(&flow->destination, ip.destination);
		flow->protocol = ip.protocol;
		return (ip.version_and_length & 0xf) * 4;
	} else {
		struct ipv6_header ip;

		if (bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)))
			return 0;
		address_from_v6(&flow->source, ip.source);
		address_from_v6(&flow->destination, ip.destination);
		flow->protocol = ip.next_header;
		return sizeof(ip);
	}
}

static inline bool parse_ports(struct __sk_buff *skb, __u32 offset, struct flow *flow)
{
	struct ports ports;

	if (bpf_skb_load_bytes(skb, offset, &ports, sizeof(ports)))
		return false;
	flow->source_port = ports.source;
	flow->destination_port = ports.destination;
	return true;
}

/* False: nothing in it concerns Services. `l2` is the length of the link layer's header. */
static inline bool parse(struct __sk_buff *skb, __u32 l2, __u8 hook, struct packet *packet)
{
	__u32 header;

	packet->tcp_flags = 0;
	packet->icmp_error = 0;
	packet->flow.source_port = 0;
	packet->flow.destination_port = 0;
	packet->flow.zero = 0;
	/* Seen again, without the tag, by the VLAN's own interface. */
	if (skb->vlan_present)
		return false;
	packet->v4 = skb->protocol == bpf_htons(ETHERTYPE_IPV4);
	if (!packet->v4 && skb->protocol != bpf_htons(ETHERTYPE_IPV6))
		return false;
	packet->flow.hook = hook;
	packet->l3 = l2;
	header = parse_ip(skb, l2, packet->v4, &packet->flow);
	if (!header)
		return false;
	packet->l4 = l2 + header;
	if (packet->flow.protocol == PROTO_TCP) {
		__u8 flags;

		if (bpf_skb_load_bytes(skb, packet->l4 + TCP_FLAGS_OFFSET, &flags, 1))
			return false;
		packet->tcp_flags = flags;
		return parse_ports(skb, packet->l4, &packet->flow);
	}
	if (packet->flow.protocol == PROTO_UDP)
		return parse_ports(skb, packet->l4, &packet->flow);
	if (packet->flow.protocol == (packet->v4 ? PROTO_ICMP : PROTO_ICMPV6)) {
		__u8 type;

		if (bpf_skb_load_bytes(skb, packet->l4, &type, 1))
			return false;
		packet->icmp_error = packet->v4 ? icmp_is_error(type) : icmpv6_is_error(type);
		return packet->icmp_error;
	}
	return false;
}
