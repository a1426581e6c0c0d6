/*
 * A flow: the 5-tuple of a packet together with the hook that sees it. The same addresses mean
 * different things before and after routing, so the hook is part of every connection's key.
 */

#define HOOK_INGRESS 1 /* before routing: destinations are rewritten here */
#define HOOK_EGRESS 2  /* after routing: sources are rewritten here */

struct flow {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 hook;
	__u16 zero;
};

/* The flow of the answers to `flow`, as `hook` sees it. */
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

static inline __u8 other_hook(__u8 hook)
{
	return hook == HOOK_INGRESS ? HOOK_EGRESS : HOOK_INGRESS;
}
