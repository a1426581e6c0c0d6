/*
 * A flow: the 5-tuple of a packet together with the hook that sees it. The same addresses mean
 * different things before and after routing, so the hook is part of every connection's key.
 */
#pragma once

#include "lib/address.h"

enum hook {
	HOOK_INGRESS = 1, /* before routing: destinations are rewritten here */
	HOOK_EGRESS = 2,  /* after routing: sources are rewritten here */
};

struct flow {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 hook;
	__u16 zero;
};

/* Write to `reverse` the flow of the answers to `flow`, as `hook` sees it. */
static inline void flow_reverse(struct flow *reverse, const struct flow *flow, __u8 hook)
{
	reverse->source = flow->destination;
	reverse->destination = flow->source;
	reverse->source_port = flow->destination_port;
	reverse->destination_port = flow->source_port;
	reverse->protocol = flow->protocol;
	reverse->hook = hook;
	reverse->zero = 0;
}

/* True if `after` is the answers to `flow`, at any hook. */
static inline bool flow_is_reverse(const struct flow *flow, const struct flow *after)
{
	return flow->source_port == after->destination_port &&
	       flow->destination_port == after->source_port && flow->protocol == after->protocol &&
	       address_equal(&flow->source, &after->destination) &&
	       address_equal(&flow->destination, &after->source);
}

static inline __u8 other_hook(__u8 hook)
{
	return HOOK_INGRESS + HOOK_EGRESS - hook;
}
