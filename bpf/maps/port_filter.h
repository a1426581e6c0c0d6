/*
 * Most packets belong to no connection of this node, and most of the rest need no translation at
 * the hook that they are at. Two bytes show that for most of them: each connection sets the byte
 * of its server side's port. A byte may be set without a connection, but there must be no
 * connection without its byte; so a byte is set before the entry is written, and stays set.
 */
#pragma once

#include "lib/flow.h"
#include "lib/map.h"

#define FILTER_PORTS \
	8192 /* ports so far apart share a byte; more bytes would not stay in the cache */

struct port_filter {
	__u8 source[FILTER_PORTS];
	__u8 destination[FILTER_PORTS];
	__u8 overflowed; /* some are in new_connections */
};

/* One for each hook and TCP, UDP, SCTP. */
MAP("array", __u32, struct port_filter, port_filters, 6, 0);

static inline struct port_filter *port_filter_get(__u8 hook, __u8 protocol)
{
	/*
	 * By bits of HOOK_EGRESS, PROTO_UDP and PROTO_SCTP that the others do not have: no branch.
	 */
	__u32 index = (hook >> 1) + 2 * (protocol & 1) + 4 * (protocol >> 7);

	return port_filters.lookup(&index);
}

static inline __u32 port_filter_index(__be16 port)
{
	__u32 number = bpf_ntohs(port);

	/*
	 * Masked after the byte swap: the verifier of Linux 6.1 forgets the bounds of a swapped
	 * number.
	 */
	asm volatile("" : "+r"(number));
	return number % FILTER_PORTS;
}

/* Return the filter if a connection may have these ports; NULL if none has. */
static inline struct port_filter *port_filter_find(__u8 hook, __u8 protocol, __be16 source,
						   __be16 destination)
{
	struct port_filter *filter = port_filter_get(hook, protocol);

	if (filter && (filter->source[port_filter_index(source)] ||
		       filter->destination[port_filter_index(destination)]))
		return filter;
	return NULL;
}

static inline struct port_filter *port_filter_of(const struct flow *flow, __u8 hook)
{
	return port_filter_find(hook, flow->protocol, flow->source_port, flow->destination_port);
}

static inline void port_filter_note(const struct flow *flow, bool reply, bool overflows)
{
	struct port_filter *filter = port_filter_get(flow->hook, flow->protocol);
	__u8 *byte;

	if (!filter)
		return;
	if (overflows && !filter->overflowed)
		filter->overflowed = 1;
	byte = reply ? &filter->source[port_filter_index(flow->source_port)] :
		       &filter->destination[port_filter_index(flow->destination_port)];
	if (!*byte)
		*byte = 1;
}
