/*
 * Marks that a packet carries from one hook to another, in its field `tc_index`. The stack leaves
 * this field alone, and only a few retired queueing disciplines read it. (Others use or overwrite
 * the packet's mark and its control block.)
 *
 * Unknown connections: a packet from the middle of a connection through a frontend, without an
 * entry here, may belong to a connection that netfilter translates for another proxy. That shows
 * only after routing. So ingress lets the packet pass with a mark, and egress refuses a marked
 * packet that is still addressed to a frontend.
 *
 * Passes: one packet may pass ingress twice: by a VLAN on a bridge and the bridge's port, or by a
 * macvlan and the interface under it. At its second pass a translated packet looks like a direct
 * flow to the backend, with the 5-tuple of a connection through a frontend. So ingress marks each
 * packet that it translates. The mark is made of the packet's new flow and of this node, and it
 * survives on the way.
 *
 * Halves: where a connection is masqueraded, ingress does one half of the translation, and egress
 * the other one. The entry at egress may go while the packet is between the hooks. What is left of
 * the mark's value says that the packet is only half translated: without an entry egress drops it.
 * The mark is too short to be certain. So a packet that netfilter has masqueraded meanwhile is known
 * by its source. If netfilter gives other packets another address, egress drops those of one flow
 * in 256.
 */
#pragma once

#include "lib/flow.h"
#include "maps/connections.h"
#include "maps/node_addresses.h"
#include "maps/settings.h"
#include "path/packet.h"

/* What egress does with such a packet. The values have no pattern and differ in the last bit. */
#define UNKNOWN_RESET 0xb5f2
#define UNKNOWN_DROP 0xb5f3

static inline bool unknown_marked(const struct __sk_buff *skb)
{
	return (skb->tc_index | 1) == UNKNOWN_DROP;
}

#define PASS_MARK_BITS 0xffc0 /* the others stay: Cilium has flags there */

static inline void mark_write(struct __sk_buff *skb, __u16 mark)
{
	skb->tc_index = (skb->tc_index & ~PASS_MARK_BITS) | mark;
}

static inline bool mark_is(const struct __sk_buff *skb, __u16 mark)
{
	return (skb->tc_index & PASS_MARK_BITS) == mark;
}

#define PASS_WHOLE 0x4000 /* nothing is left to be translated */

static inline __u16 pass_mark(const struct settings *settings, const struct flow *flow)
{
	__u32 mix = flow->source.words[3] ^ flow->destination.words[3] ^
		    (__u32)settings->netns_cookie * 0x85ebca6b;

	mix ^= (__u32)flow->source_port << 16 | flow->destination_port;
	mix *= 0x9e3779b1;
	/* Never UNKNOWN_RESET or UNKNOWN_DROP, and never 0: that is no mark. */
	mix = mix >> 16 & PASS_MARK_BITS & 0x3fff;
	return mix ? mix : PASS_MARK_BITS & 0x3fff;
}

/* Mark a packet of ingress that becomes `routed`. `whole`: PASS_WHOLE, or 0. */
static inline void pass_note(struct __sk_buff *skb, const struct settings *settings,
			     const struct flow *routed, __u16 whole)
{
	mark_write(skb, pass_mark(settings, routed) | whole);
}

/* True if a packet of this flow was translated to it at another interface. */
static inline bool pass_noted(struct __sk_buff *skb, const struct settings *settings,
			      const struct flow *flow)
{
	return (skb->tc_index & PASS_MARK_BITS & ~PASS_WHOLE) == pass_mark(settings, flow);
}

/* True if a packet without an entry at egress needs one. */
static inline bool pass_is_half(struct __sk_buff *skb, const struct settings *settings,
				struct flow *flow)
{
	return mark_is(skb, pass_mark(settings, flow)) && !node_addresses.lookup(&flow->source);
}

/* True if the packets of a connection need an entry at both hooks. */
static inline bool connection_passes_halves(const struct connection *connection)
{
	return connection->masquerade || (connection->reply && connection->service);
}

/*
 * A packet of the fast path passes egress where it leaves this node. There is nothing left to do
 * for it, which this mark says. (Never one of the marks above.)
 */
static inline __u16 egress_done_mark(const struct settings *settings)
{
	return ((__u32)settings->netns_cookie * 0x9e3779b1 >> 16 & PASS_MARK_BITS) | 0xc000;
}

static inline void egress_done_note(struct __sk_buff *skb, const struct settings *settings)
{
	mark_write(skb, egress_done_mark(settings));
}

static inline bool egress_done(const struct __sk_buff *skb, const struct settings *settings)
{
	return mark_is(skb, egress_done_mark(settings));
}

/*
 * A masqueraded packet may pass egress twice. At its second pass it looks like one of the node
 * itself (path/first/netfilter_ports.h), but for this mark. (Never one of the marks above.)
 */
static inline __u16 masqueraded_mark(const struct settings *settings)
{
	return ((__u32)settings->netns_cookie * 0x9e3779b1 >> 16 & PASS_MARK_BITS & 0x3fff) |
	       0x8000;
}

static inline void masqueraded_note(struct __sk_buff *skb, const struct settings *settings)
{
	mark_write(skb, masqueraded_mark(settings));
}

static inline bool masqueraded_noted(const struct __sk_buff *skb, const struct settings *settings)
{
	return mark_is(skb, masqueraded_mark(settings));
}

/* Mark a packet of a known connection, for its next pass. */
static inline void pass_note_translated(struct __sk_buff *skb, const struct settings *settings,
					const struct packet *packet,
					const struct connection *connection)
{
	if (packet->flow.hook == HOOK_INGRESS)
		pass_note(skb, settings, &packet->after,
			  connection_passes_halves(connection) ? 0 : PASS_WHOLE);
	else if (!connection->reply)
		masqueraded_note(skb, settings);
}

/* A packet that comes back, from a pod that forwards it, has the mark of its way to the pod. */
static inline void egress_done_forget(struct __sk_buff *skb)
{
	mark_write(skb, 0);
}
