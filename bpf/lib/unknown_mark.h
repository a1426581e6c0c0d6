/*
 * A packet from the middle of a connection through a frontend that these programs do not know may
 * be of a connection that netfilter translates, made by another proxy. That shows only after
 * routing. So ingress lets it pass with a mark, and egress refuses a marked packet that is still
 * addressed to a frontend. The mark is the field `tc_index`: the stack leaves it alone, and nothing
 * but a few retired queueing disciplines reads it.
 */
#pragma once

/* What egress does with such a packet. The values have no pattern and differ in the last bit. */
#define UNKNOWN_RESET 0xb5f2
#define UNKNOWN_DROP 0xb5f3

static inline bool unknown_marked(const struct __sk_buff *skb)
{
	return (skb->tc_index | 1) == UNKNOWN_DROP;
}
