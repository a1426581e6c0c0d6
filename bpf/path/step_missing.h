/*
 * What happens while all steps are missing. A map of programs loses its entries when its last pin
 * and its last descriptor are gone, but filters in a clsact qdisc still run: someone has removed
 * the pins, and no agent runs. Then packets for a Service are dropped, because they might leave
 * untranslated. All others pass.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/wire.h"
#include "maps/counters.h"
#include "maps/destinations.h"
#include "maps/frontends.h"
#include "maps/node_addresses.h"
#include "maps/service_networks.h"
#include "path/packet.h"
#include "path/tail_calls.h"

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
 * True if a packet of unknown ports is for an address of a Service. One bit shows that, so of ten
 * thousand other addresses some look alike, where there are a thousand frontends.
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

/* Jump to the step of a first packet, an echo request, or an ICMP error. */
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
	return step_missing_verdict(packet->flow.hook == HOOK_INGRESS &&
				    parse_addresses(skb, packet->l3, packet->v4, &packet->flow) &&
				    address_is_served(&packet->flow.destination));
}
