/*
 * ICMP errors quote the packet they are about as the network saw it. Quote and addresses are
 * translated back, so that the sender recognises its own packet; path-MTU discovery depends on it.
 * The quoted transport checksum stays: it is often cut off, and nobody verifies it.
 */

/* Replace an address of the quoted packet; the ICMP checksum covers it as data. */
static inline int rewrite_quoted_address(struct __sk_buff *skb, __u32 l3, bool v4, __u32 field,
					 struct address *from, struct address *to, __u32 checksum)
{
	/* The quoted IPv4 header's own checksum changes by as much as the address: nothing is left. */
	if (!v4) {
		__s64 difference = bpf_csum_diff(from->words, 16, to->words, 16, 0);
		int error = bpf_l4_csum_replace(skb, checksum, 0, difference, 0);

		if (error)
			return error;
	}
	return rewrite_address(skb, l3, v4, field, from, to, 0, 0);
}

static inline int rewrite_quote(struct __sk_buff *skb, __u32 l3, __u32 l4, bool v4,
				struct flow *before, struct flow *after, __u32 checksum)
{
	int error = 0;

	if (!address_equal(&before->source, &after->source))
		error |= rewrite_quoted_address(skb, l3, v4, source_offset(v4), &before->source,
						&after->source, checksum);
	if (!address_equal(&before->destination, &after->destination))
		error |= rewrite_quoted_address(skb, l3, v4, destination_offset(v4),
						&before->destination, &after->destination,
						checksum);
	if (before->source_port != after->source_port)
		error |=
			rewrite_port(skb, l4, before->source_port, after->source_port, checksum, 0);
	if (before->destination_port != after->destination_port)
		error |= rewrite_port(skb, l4 + 2, before->destination_port,
				      after->destination_port, checksum, 0);
	return error;
}

/*
 * An error goes the way of the connection that it is about: to conntrack, one about a connection that
 * it never saw would be invalid. At the interface where it leaves it meets us again.
 */
static inline int pass_icmp_error(struct __sk_buff *skb, struct packet *packet, bool shortcut)
{
	if (!shortcut || !shortcut_find(skb, packet))
		return TC_ACT_UNSPEC;
	if (spend_hop(skb, packet))
		return rewritten(-1);
	packet->straight = 0;
	return shortcut_leave(skb, packet);
}

static inline int translate_icmp_error(struct __sk_buff *skb, const struct settings *settings,
				       struct packet *packet)
{
	__u32 checksum = packet->l4 + ICMP_CHECKSUM_OFFSET;
	__u32 inner_l3 = packet->l4 + sizeof(struct icmp_header);
	struct flow inner = {}, key, after;
	struct connection *connection;
	bool shortcut = false;
	__u32 header;
	int error;

	header = parse_quote(skb, inner_l3, packet->v4, &inner);
	if (!header)
		return TC_ACT_UNSPEC;

	/* The error travels like a reply to the packet it quotes. */
	flow_reverse(&key, &inner, packet->flow.hook);
	connection = connection_find(&key);
	packet->after = packet->flow;
	if (packet->flow.hook == HOOK_INGRESS) {
		if (connection)
			shortcut = way_of(skb, settings, connection) != BY_STACK;
		else
			return pass_icmp_error(skb, packet, shortcut_reply(skb, settings, &key));
	}
	if (!connection || connection->masquerade_pending)
		return TC_ACT_UNSPEC;
	flow_reverse(&after, &connection->after, 0);

	error = rewrite_quote(skb, inner_l3, inner_l3 + header, packet->v4, &inner, &after,
			      checksum);
	if (packet->flow.hook == HOOK_INGRESS) {
		error |= rewrite_address(skb, packet->l3, packet->v4,
					 destination_offset(packet->v4), &packet->flow.destination,
					 &after.source, packet->v4 ? 0 : checksum, 0);
		packet->after.destination = after.source;
	} else if (address_equal(&packet->flow.source, &inner.destination)) {
		/* The backend itself complains, and its client knows it by the frontend's address. */
		error |= rewrite_address(skb, packet->l3, packet->v4, source_offset(packet->v4),
					 &packet->flow.source, &after.destination,
					 packet->v4 ? 0 : checksum, 0);
	}
	if (error)
		return rewritten(error);
	COUNT(icmp_errors_translated);
	return pass_icmp_error(skb, packet, shortcut);
}
