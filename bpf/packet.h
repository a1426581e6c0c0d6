/*
 * A packet as far as the walk looks at it. It lies in a map, one row per CPU, not on the stack: the
 * stack is small, and what the verifier cannot see into does not multiply the paths it follows.
 */

/* Interfaces by which a connection's packets come; 0: it takes the stack. */
struct shortcut_ends {
	__u32 client;
	__u32 backend;
};

/* How a packet is to leave. */
enum way {
	BY_STACK,
	BY_SHORTCUT,
	BY_SHORTCUT_AGAIN, /* and it is translated once more when it leaves */
};

struct packet {
	struct flow flow;
	struct flow after; /* what `flow` must become */
	__u32 l3;	   /* offset of the IP header */
	__u32 l4;	   /* offset of the transport header */
	__u8 v4;
	__u8 tcp_flags;
	__u8 icmp_error;
	__u8 echo;     /* an echo request: of no flow, but it may ask for a cluster IP */
	__u8 reuse;    /* the flow's connection is closed, and this opens another */
	__u8 fragment; /* of FRAGMENT_* */
	__u8 fragment_protocol;
	__u8 hop; /* 1: it is forwarded by us, which costs it one */
	__u32 fragment_id;
	__u8 way;      /* of enum way; between steps */
	__u8 straight; /* on the fast path: to the far end of an interface, in a pod */
	__u8 reserved[2];
	struct shortcut_ends ends; /* of a first packet */
	__u64 route[8];		   /* on the fast path: struct bpf_fib_lookup */
	__u64 route_back[8];	   /* the same for the replies to a first packet */
	struct port_search search; /* for a port to masquerade to */
	struct client client;	   /* of a first packet: who sent it, and what was chosen for it */
	struct choice choice;
};

#define FRAGMENT_FIRST 1
#define FRAGMENT_LATER 2

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

/*
 * What of an IP header has to be known first. `length` is 0 for what is not looked at. Unusual are
 * fragments and IPv6 extension headers.
 */
struct ip_start {
	__u32 length;
	__u8 protocol;
	bool unusual;
	bool later; /* fragment than the first, without ports */
};

static inline bool ipv6_is_extension(__u8 next_header)
{
	return next_header == IPV6_HOP_BY_HOP || next_header == IPV6_ROUTING ||
	       next_header == IPV6_FRAGMENT || next_header == IPV6_DESTINATION ||
	       next_header == IPV6_AUTHENTICATION;
}

static inline struct ip_start parse_ip(struct __sk_buff *skb, __u32 offset, bool v4)
{
	struct ip_start start = {};

	if (v4) {
		struct ipv4_start ip;

		if (!read_bytes(skb, offset, &ip, sizeof(ip)) || ip.version_and_length >> 4 != 4)
			return start;
		start.later = ip.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET);
		start.unusual = ip.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET | IPV4_MORE_FRAGMENTS);
		start.length = (ip.version_and_length & 0xf) * 4;
		start.protocol = ip.protocol;
	} else {
		struct ipv6_start ip;

		if (!read_bytes(skb, offset, &ip, sizeof(ip)))
			return start;
		start.length = IPV6_HEADER_LENGTH;
		start.protocol = ip.next_header;
		start.unusual = ipv6_is_extension(ip.next_header);
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

static inline bool has_ports(__u8 protocol)
{
	return protocol == PROTO_TCP || protocol == PROTO_UDP || protocol == PROTO_SCTP;
}

/* An association begins with INIT (RFC 9260, 5.1). */
static inline bool sctp_opens(struct __sk_buff *skb, __u32 l4)
{
	__u8 chunk;

	return !bpf_skb_load_bytes(skb, l4 + SCTP_CHUNK_OFFSET, &chunk, sizeof(chunk)) &&
	       chunk == SCTP_INIT;
}

/* Read a quoted packet: its addresses, protocol and ports. */
static inline __u32 parse_quote(struct __sk_buff *skb, __u32 offset, bool v4, struct flow *flow)
{
	struct ip_start ip = parse_ip(skb, offset, v4);
	struct ports ports;

	if (!ip.length || ip.later || !has_ports(ip.protocol) ||
	    !parse_addresses(skb, offset, v4, flow) ||
	    !read_bytes(skb, offset + ip.length, &ports, sizeof(ports)))
		return 0;
	flow->protocol = ip.protocol;
	flow->source_port = ports.source;
	flow->destination_port = ports.destination;
	return ip.length;
}

#define PARSED_NOTHING 0 /* nothing in it concerns Services */
#define PARSED 1
#define PARSED_UNUSUAL 2 /* it takes parse_unusual() to tell */
#define PARSED_EARLY 3	 /* a fragment that overtook its first */

static inline bool is_echo_request(bool v4, __u8 type)
{
	return type == (v4 ? ICMP_ECHO_REQUEST : ICMPV6_ECHO_REQUEST);
}

/*
 * `l2` is the length of the link layer's header. Most packets end here, in the middle of a TCP
 * connection that was never translated, so that is asked before anything else is read.
 */
static inline int parse(struct __sk_buff *skb, __u32 l2, __u8 hook, const struct settings *settings,
			struct packet *packet)
{
	bool v4 = skb->protocol == bpf_htons(ETHERTYPE_IPV4);
	__u8 tcp_flags = 0, icmp_error = 0, echo = 0;
	struct ports ports = {};
	struct ip_start ip;
	__u32 l4;

	/* With a tag it is seen again, without, by the VLAN's own interface. */
	if ((!v4 && skb->protocol != bpf_htons(ETHERTYPE_IPV6)) || skb->vlan_present)
		return PARSED_NOTHING;
	ip = parse_ip(skb, l2, v4);
	if (!ip.length)
		return PARSED_NOTHING;
	packet->l3 = l2;
	packet->v4 = v4;
	packet->flow.hook = hook;
	if (ip.unusual)
		return PARSED_UNUSUAL;
	l4 = l2 + ip.length;
	if (has_ports(ip.protocol)) {
		if (!read_bytes(skb, l4, &ports, sizeof(ports)))
			return PARSED_NOTHING;
		if (ip.protocol == PROTO_TCP &&
		    !read_bytes(skb, l4 + TCP_FLAGS_OFFSET, &tcp_flags, sizeof(tcp_flags)))
			return PARSED_NOTHING;
		if (!settings->settling &&
		    (hook == HOOK_EGRESS || (ip.protocol == PROTO_TCP && !tcp_opens(tcp_flags))) &&
		    !ports_may_be_known(hook, ip.protocol, ports.source, ports.destination) &&
		    !(hook == HOOK_INGRESS && l2 && settings->fast_path &&
		      ports_may_be_known(HOOK_EGRESS, ip.protocol, ports.source,
					 ports.destination)))
			return PARSED_NOTHING;
	} else {
		__u8 type;

		if (ip.protocol != (v4 ? PROTO_ICMP : PROTO_ICMPV6) ||
		    !read_bytes(skb, l4, &type, sizeof(type)))
			return PARSED_NOTHING;
		icmp_error = v4 ? icmp_is_error(type) : icmpv6_is_error(type);
		echo = hook == HOOK_INGRESS && is_echo_request(v4, type);
		if (!icmp_error && !echo)
			return PARSED_NOTHING;
	}
	packet->flow.source_port = ports.source;
	packet->flow.destination_port = ports.destination;
	packet->flow.protocol = ip.protocol;
	packet->flow.zero = 0;
	packet->l4 = l4;
	packet->tcp_flags = tcp_flags;
	packet->icmp_error = icmp_error;
	packet->echo = echo;
	packet->reuse = 0;
	packet->fragment = 0;
	packet->hop = 0;
	packet->search.round = 0;
	return parse_addresses(skb, l2, v4, &packet->flow) ? PARSED : PARSED_NOTHING;
}
