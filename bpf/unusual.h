/* Parsing with all there may be between an IP header and its transport: fragments and extensions. */

#define MAX_EXTENSIONS 8

struct ipv6_extension {
	__u8 next_header;
	__u8 length; /* of the header, in units that depend on its type */
};

struct ipv6_fragment {
	__u8 next_header;
	__u8 reserved;
	__be16 offset; /* in units of 8 bytes, from bit 3; bit 0: more fragments follow */
	__be32 id;
};

static inline __u8 fragment_kind(bool later)
{
	return later ? FRAGMENT_LATER : FRAGMENT_FIRST;
}

static inline bool parse_ipv4_unusual(struct __sk_buff *skb, struct packet *packet)
{
	struct ipv4_start ip;

	if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)))
		return false;
	packet->flow.protocol = ip.protocol;
	packet->l4 = packet->l3 + (ip.version_and_length & 0xf) * 4;
	packet->fragment_id = ip.id;
	packet->fragment_protocol = ip.protocol;
	packet->fragment = fragment_kind(ip.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET));
	return true;
}

static inline bool parse_ipv6_unusual(struct __sk_buff *skb, struct packet *packet)
{
	__u32 at = packet->l3 + IPV6_HEADER_LENGTH;
	struct ipv6_start ip;
	__u8 next;

	if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)))
		return false;
	next = ip.next_header;
#pragma clang loop unroll(disable)
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		struct ipv6_extension extension;

		if (!ipv6_is_extension(next))
			break;
		if (next == IPV6_FRAGMENT) {
			struct ipv6_fragment fragment;

			if (bpf_skb_load_bytes(skb, at, &fragment, sizeof(fragment)))
				return false;
			packet->fragment_id = fragment.id;
			packet->fragment_protocol = 0;
			/* An atomic fragment (RFC 6946) is all there is. */
			if (fragment.offset & bpf_htons(0xfff9))
				packet->fragment =
					fragment_kind(fragment.offset & bpf_htons(0xfff8));
			next = fragment.next_header;
			at += sizeof(fragment);
			/* What follows in a later one is data. */
			if (packet->fragment == FRAGMENT_LATER)
				break;
			continue;
		}
		if (bpf_skb_load_bytes(skb, at, &extension, sizeof(extension)))
			return false;
		at += next == IPV6_AUTHENTICATION ? (extension.length + 2) * 4 :
						    (extension.length + 1) * 8;
		next = extension.next_header;
	}
	packet->flow.protocol = next;
	packet->l4 = at;
	return true;
}

static inline bool parse_transport(struct __sk_buff *skb, struct packet *packet)
{
	struct ports ports;
	__u8 type;

	if (has_ports(packet->flow.protocol)) {
		if (bpf_skb_load_bytes(skb, packet->l4, &ports, sizeof(ports)))
			return false;
		packet->flow.source_port = ports.source;
		packet->flow.destination_port = ports.destination;
		return packet->flow.protocol != PROTO_TCP ||
		       !bpf_skb_load_bytes(skb, packet->l4 + TCP_FLAGS_OFFSET, &packet->tcp_flags,
					   sizeof(packet->tcp_flags));
	}
	/* Errors are not fragmented and carry no extensions. An echo request may be either. */
	if (packet->flow.hook != HOOK_INGRESS ||
	    packet->flow.protocol != (packet->v4 ? PROTO_ICMP : PROTO_ICMPV6) ||
	    bpf_skb_load_bytes(skb, packet->l4, &type, sizeof(type)))
		return false;
	packet->echo = is_echo_request(packet->v4, type);
	return packet->echo;
}

/* After parse() found it unusual. */
static inline int parse_unusual(struct __sk_buff *skb, struct packet *packet)
{
	packet->fragment = packet->tcp_flags = packet->icmp_error = 0;
	packet->echo = packet->reuse = packet->hop = 0;
	packet->search.round = 0;
	packet->flow.source_port = packet->flow.destination_port = 0;
	packet->flow.zero = 0;
	if (packet->v4 ? !parse_ipv4_unusual(skb, packet) : !parse_ipv6_unusual(skb, packet))
		return PARSED_NOTHING;
	if (!parse_addresses(skb, packet->l3, packet->v4, &packet->flow))
		return PARSED_NOTHING;
	if (packet->fragment == FRAGMENT_LATER) {
		__u8 first = fragment_recall(packet);

		if (first == FRAGMENT_TRANSLATED)
			return PARSED;
		/* Once they are in order as they enter, they are so when they leave. */
		return first != FRAGMENT_PASSED && packet->flow.hook == HOOK_INGRESS ?
			       PARSED_EARLY :
			       PARSED_NOTHING;
	}
	return parse_transport(skb, packet) ? PARSED : PARSED_NOTHING;
}
