/*
 * Steps: programs for what few packets need, reached by tail calls. They find the packet in the map
 * `packets`. Each build has a map `steps` of its own.
 *
 * A map of programs loses its entries when its last pin and its last descriptor are gone, but
 * filters in a clsact qdisc still run: someone has removed the pins, and no agent runs. Then all
 * steps are missing. Packets for a Service are dropped, because they might leave untranslated. All
 * others pass.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/map.h"
#include "lib/parse.h"
#include "lib/wire.h"
#include "maps/counters.h"
#include "maps/destinations.h"
#include "maps/frontends.h"
#include "maps/node_addresses.h"
#include "maps/service_networks.h"
#include "maps/settings.h"
#include "path/packet.h"

/* By their place in `steps`; the program of STEP_X is `step_x`. */
enum step {
	STEP_FIRST,	   /* a packet of no known connection, or a SYN that opens one anew */
	STEP_ESTABLISHED,  /* a packet of a connection; the entries need more than an update */
	STEP_ICMP,	   /* an ICMP error */
	STEP_PARSE_SLOW,   /* fragments, IPv6 extension headers */
	STEP_REWRITE,	   /* fragments and SCTP, once it is known what they become */
	STEP_OPEN,	   /* a first packet that has a backend */
	STEP_REJECT,	   /* a first packet that is refused */
	STEP_MASQUERADE,   /* the first packet of a masqueraded connection leaves */
	STEP_FAST_PATH,	   /* a packet of other steps takes the fast path */
	STEP_ECHO,	   /* an echo request that is answered */
	STEP_SCHEDULE,	   /* a first packet that needs loads compared, or overflow decided */
	STEP_ATTEMPT,	   /* before STEP_ESTABLISHED, until the connect result is recorded */
	STEP_REVISE,	   /* before STEP_OPEN, if another backend may be needed after all */
	STEP_UNTRANSLATED, /* after STEP_OPEN, a first packet from outside that stays as it is */
	STEPS,
};

/* Behind the steps, while a build is being replaced: its ingress, egress, ingress_l3, egress_l3. */
enum {
	REPLACED_PROGRAMS = 4,
};

MAP("prog", __u32, __u32, steps, STEPS + REPLACED_PROGRAMS, 0);

/*
 * Jump to a step with a packet of a Service. If the step is missing, the packet is dropped: it
 * might leave untranslated. (tail_call_unknown() and tail_call_unparsed() are for packets that may
 * be of no Service.)
 */
static inline int tail_call(struct __sk_buff *skb, __u32 number)
{
	steps.call(skb, number);
	COUNT(dropped__step_missing);
	return TC_ACT_SHOT;
}

/*
 * Have the build that is being replaced handle a packet (settings.takeover). This returns if there
 * is none.
 */
static inline void tail_call_replaced(struct __sk_buff *skb, const struct packet *packet)
{
	steps.call(skb, STEPS + packet->flow.hook - HOOK_INGRESS + (packet->l3 ? 0 : 2));
}

/*
 * Return the verdict on a packet of a connection that is not complete: it is dropped, because nothing
 * would translate the other direction. But while connections are copied one entry after the other,
 * the build that is being replaced has all of them.
 */
static inline int incomplete_verdict(struct __sk_buff *skb, const struct settings *settings,
				     const struct packet *packet)
{
	if (settings->takeover)
		tail_call_replaced(skb, packet);
	return TC_ACT_SHOT;
}

/* True for an address that only Services have, of whichever port. */
static inline bool is_cluster_ip(const struct address *address)
{
	return service_network_has(address) || frontend_rest(address);
}

/* True if a flow with known ports is for a Service. */
static inline bool flow_is_served(const struct flow *flow)
{
	struct frontend_key key = {
		.address = flow->destination,
		.port = flow->destination_port,
		.protocol = flow->protocol,
	};

	return is_cluster_ip(&flow->destination) || frontend_find(&key);
}

/*
 * True if a packet with unknown ports is for an address of a Service. One bit shows that. With a
 * thousand frontends, some of ten thousand other addresses have the same bit.
 */
static inline bool address_is_served(const struct address *address)
{
	struct destinations *known = destinations_get();
	struct address own = *address;

	return is_cluster_ip(address) ||
	       (known && destination_bit(known->served, destination_index(address, 0, 0)) &&
		!node_addresses.lookup(&own));
}

static inline int step_missing_verdict(bool served)
{
	if (!served)
		return TC_ACT_UNSPEC;
	COUNT(dropped__step_missing);
	return TC_ACT_SHOT;
}

/* Jump to the step of a first packet, an echo request or an ICMP error. */
static inline int tail_call_unknown(struct __sk_buff *skb, struct packet *packet, __u32 number)
{
	bool served = packet->flow.hook == HOOK_INGRESS;

	steps.call(skb, number);
	if (served)
		served = has_ports(packet->flow.protocol) ?
				 flow_is_served(&packet->flow) :
				 address_is_served(&packet->flow.destination);
	return step_missing_verdict(served);
}

/* Jump to the step of a packet that is not parsed yet. */
static inline int tail_call_unparsed(struct __sk_buff *skb, struct packet *packet)
{
	steps.call(skb, STEP_PARSE_SLOW);
	return step_missing_verdict(
		packet->flow.hook == HOOK_INGRESS &&
		parse_addresses(skb, packet->l3, packet->v4, &packet->flow, false) &&
		address_is_served(&packet->flow.destination));
}
