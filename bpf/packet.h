/*
 * A packet as far as the walk looks at it. It lies in a map, one row per CPU, not on the stack: the
 * stack is small, and what the verifier cannot see into does not multiply the paths it follows.
 */

struct packet {
	struct flow flow;
	struct flow after; /* what `flow` must become */
	__u32 l3;	   /* offset of the IP header */
	__u32 l4;	   /* offset of the transport header */
	__u8 v4;
	__u8 tcp_flags;
	__u8 icmp_error;
	__u8 reuse; /* the flow's connection is closed, and this opens another */
	__u8 zero[4];
};

MAP("percpu_array", __u32, struct packet, packets, 1, 0);

static inline struct packet *packet_get(void)
{
	__u32 only = 0;

	return packets.lookup(&only);
}

static inline bool tcp_opens(__u8 tcp_flags)
{
	return (tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

/* Read from the packet, at best straight from its linear part. */
static inline bool read_bytes(struct __sk_buff *skb, __u32 offset, void *to, const __u32 size)
{
	void *at = (void *)(long)skb->data + (offset & 0xff);

	if (at + size <= (void *)(long)skb->data_end) {
		__builtin_memcpy(to, at, size);
		return true;
	}
	return bpf_skb_load_bytes(skb, offset, to, size) == 0;
}

/* What of an IP header has to be known first. `length` is 0 for what is not looked at. */
struct ip_start {
	__u32 length;
	__u8 protocol;
};

/*
 * Not looked at are other protocols than IP, and fragments after the first, which carry no ports.
 */
static inline struct ip_start parse_ip(struct __sk_buff *skb, __u32 offset, bool v4)
{
	struct ip_start start = {};

	if (v4) {
		struct ipv4_start ip;

		if (!read_bytes(skb, offset, &ip, sizeof(ip)) || ip.version_and_length >> 4 != 4 ||
		    ip.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET))
			return start;
		start.length = (ip.version_and_length & 0xf) * 4;
		start.protocol = ip.protocol;
	} else {
		struct ipv6_start ip;

		if (!read_bytes(skb, offset, &ip, sizeof(ip)))
			return start;
		start.length = IPV6_HEADER_LENGTH;
		start.protocol = ip.next_header;
	}
	return start;
}

static inline bool parse_addresses(struct __sk_buff *skb, __u32 offset, bool v4, struct flow *flow)
{
	if (v4) {
		__be32 pair[2];

		if (!read_bytes(skb, offset + IPV4_SOURCE_OFFSET, pair, sizeof(pair)))
			return false;
		address_from_v4(&flow->source, pair[0]);
		address_from_v4(&flow->destination, pair[1]);
	} else {
		__be32 pair[8];

		if (!read_bytes(skb, offset + IPV6_SOURCE_OFFSET, pair, sizeof(pair)))
			return false;
		address_from_v6(&flow->source, pair);
		address_from_v6(&flow->destination, pair + 4);
	}
	return true;
}

/* Read a quoted packet: its addresses, protocol and ports. */
static inline __u32 parse_quote(struct __sk_buff *skb, __u32 offset, bool v4, struct flow *flow)
{
	struct ip_start ip = parse_ip(skb, offset, v4);
	struct ports ports;

	if (!ip.length || (ip.protocol != PROTO_TCP && ip.protocol != PROTO_UDP) ||
	    !parse_addresses(skb, offset, v4, flow) ||
	    !read_bytes(skb, offset + ip.length, &ports, sizeof(ports)))
		return 0;
	flow->protocol = ip.protocol;
	flow->source_port = ports.source;
	flow->destination_port = ports.destination;
	return ip.length;
}

/*
 * False: nothing in it concerns Services. `l2` is the length of the link layer's header. Most
 * packets end here, in the middle of a TCP connection that was never translated, so that is asked
 * before anything else is read.
 */
static inline bool parse(struct __sk_buff *skb, __u32 l2, __u8 hook, bool settling,
			 struct packet *packet)
{
	bool v4 = skb->protocol == bpf_htons(ETHERTYPE_IPV4);
	__u8 tcp_flags = 0, icmp_error = 0;
	struct ports ports = {};
	struct ip_start ip;
	__u32 l4;

	/* With a tag it is seen again, without, by the VLAN's own interface. */
	if ((!v4 && skb->protocol != bpf_htons(ETHERTYPE_IPV6)) || skb->vlan_present)
		return false;
	ip = parse_ip(skb, l2, v4);
	if (!ip.length)
		return false;
	l4 = l2 + ip.length;
	if (ip.protocol == PROTO_TCP || ip.protocol == PROTO_UDP) {
		if (!read_bytes(skb, l4, &ports, sizeof(ports)))
			return false;
		if (ip.protocol == PROTO_TCP &&
		    !read_bytes(skb, l4 + TCP_FLAGS_OFFSET, &tcp_flags, sizeof(tcp_flags)))
			return false;
		if (!settling &&
		    (hook == HOOK_EGRESS || (ip.protocol == PROTO_TCP && !tcp_opens(tcp_flags))) &&
		    !ports_may_be_known(hook, ip.protocol, ports.source, ports.destination))
			return false;
	} else {
		__u8 type;

		if (ip.protocol != (v4 ? PROTO_ICMP : PROTO_ICMPV6) ||
		    !read_bytes(skb, l4, &type, sizeof(type)))
			return false;
		icmp_error = v4 ? icmp_is_error(type) : icmpv6_is_error(type);
		if (!icmp_error)
			return false;
	}
	packet->flow.source_port = ports.source;
	packet->flow.destination_port = ports.destination;
	packet->flow.protocol = ip.protocol;
	packet->flow.hook = hook;
	packet->flow.zero = 0;
	packet->l3 = l2;
	packet->l4 = l4;
	packet->v4 = v4;
	packet->tcp_flags = tcp_flags;
	packet->icmp_error = icmp_error;
	packet->reuse = 0;
	return parse_addresses(skb, l2, v4, &packet->flow);
}
