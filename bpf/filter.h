/*
 * Most packets concern no connection of this node, and most of the rest need no translation at the
 * hook that they are at. Two bytes tell most of them: connections are entered here under the port
 * of their server side. The filter may say yes for nothing, but never no for something, so a byte
 * is set before its entry is written and stays set.
 */

#define FILTER_PORTS 8192 /* ports as far apart share a byte; more would not stay in the cache */

struct port_filter {
	__u8 source[FILTER_PORTS];
	__u8 destination[FILTER_PORTS];
	__u8 overflowed; /* some are in new_connections */
};

/* One for each hook and TCP, UDP, SCTP. */
MAP("array", __u32, struct port_filter, port_filters, 6, 0);

static inline struct port_filter *port_filter_get(__u8 hook, __u8 protocol)
{
	__u32 index =
		(hook == HOOK_EGRESS) + 2 * (protocol == PROTO_UDP) + 4 * (protocol == PROTO_SCTP);

	return port_filters.lookup(&index);
}

static inline __u32 filter_place(__be16 port)
{
	__u32 number = bpf_ntohs(port);

	/* Masked after the swap, not before: Linux 6.1 knows no bounds of a swapped number. */
	asm volatile("" : "+r"(number));
	return number % FILTER_PORTS;
}

/* The filter that says yes; NULL for no. */
static inline struct port_filter *ports_may_be_known(__u8 hook, __u8 protocol, __be16 source,
						     __be16 destination)
{
	struct port_filter *filter = port_filter_get(hook, protocol);

	if (filter && (filter->source[filter_place(source)] ||
		       filter->destination[filter_place(destination)]))
		return filter;
	return NULL;
}

static inline void flow_note(const struct flow *flow, bool reply, bool overflows)
{
	struct port_filter *filter = port_filter_get(flow->hook, flow->protocol);
	__u8 *place;

	if (!filter)
		return;
	if (overflows && !filter->overflowed)
		filter->overflowed = 1;
	place = reply ? &filter->source[filter_place(flow->source_port)] :
			&filter->destination[filter_place(flow->destination_port)];
	if (!*place)
		*place = 1;
}
