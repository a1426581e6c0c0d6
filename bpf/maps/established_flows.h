/*
 * Flows between pods that take the fast path after the handshake, while netfilter sees how they
 * begin and end (settings.established). Each direction has an entry. Its key is the addresses and
 * ports that netfilter sees: after ingress has translated, before egress does.
 *
 *	The programs	count what netfilter lets pass both ways (maps/established_counts.h,
 *			maps/fast_flows.h), and write one entry, a candidate, when a flow has
 *			enough packets.
 *	The agent	asks conntrack. If the connection is established there and not translated,
 *			and conntrack was told not to expect every packet, both directions become
 *			fast.
 *	The programs	let a direction be fast for the rest of each turn in which netfilter has let
 *			a packet of it pass. So conntrack keeps its entry, and a new rule that drops
 *			these packets drops all of them from the next turn on.
 *
 * A packet with SYN, FIN or RST takes the stack and removes both entries, once the agent has listed
 * the ports of the flow (maps/established_ports.h). It does that before it asks conntrack.
 */
#pragma once

#include "lib/flow.h"
#include "lib/map.h"
#include "lib/wire.h"
#include "maps/established_ports.h"

#define ESTABLISHED_FLOWS 65536 /* two for each connection; what does not fit takes the stack */

/* A turn is so many jiffies: 0.26 s where HZ is 1000, 2.6 s where it is 100. */
#define ESTABLISHED_TURN_SHIFT 8

enum established_state {
	ESTABLISHED_CANDIDATE = 1, /* the agent has to ask conntrack */
	ESTABLISHED_REFUSED,	   /* it has asked, and will remove the entry later */
	ESTABLISHED_FAST,
};

struct established_flow {
	__u32 state;  /* of enum established_state */
	__u32 asked;  /* the turn in which a packet was left to the stack to find out */
	__u32 passed; /* the turn of the last such packet that has passed netfilter */
};

MAP("hash", struct flow, struct established_flow, established_flows, ESTABLISHED_FLOWS,
    BPF_F_NO_PREALLOC);

/* The key of a flow: it belongs to no hook. */
static inline struct flow established_key(const struct flow *flow)
{
	struct flow key = *flow;

	key.hook = 0;
	key.zero = 0;
	return key;
}

/* Remove both directions. */
static inline void established_remove(struct flow *key)
{
	struct flow reverse;

	flow_reverse(&reverse, key, 0);
	established_flows.delete(key);
	established_flows.delete(&reverse);
}

static inline bool established_over(const struct flow *key, __u8 tcp_flags)
{
	return key->protocol == PROTO_TCP && tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST);
}

/* True if a packet at ingress, which netfilter would see as `routed`, may skip netfilter. */
static inline bool established_goes_on(const struct flow *routed, __u8 tcp_flags)
{
	struct established_flow *entry;
	struct flow key;
	__u32 turn;

	if (!established_ports_listed(routed->source_port, routed->destination_port))
		return false;
	key = established_key(routed);
	entry = established_flows.lookup(&key);
	if (!entry)
		return false;
	if (established_over(&key, tcp_flags)) {
		established_remove(&key);
		return false;
	}
	if (entry->state != ESTABLISHED_FAST)
		return false;
	turn = bpf_jiffies64() >> ESTABLISHED_TURN_SHIFT;
	if (entry->passed == turn)
		return true;
	if (entry->asked != turn)
		entry->asked = turn;
	return false;
}
