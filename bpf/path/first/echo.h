/*
 * Whether an echo request (ping) to an address of a Service is answered (step/echo.h).
 *
 * A request with IPv4 options or IPv6 extension headers is not answered: a reply that has them,
 * too, may be wrong (a recorded route, a routing header). It is handled as if there was no
 * endpoint.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/wire.h"
#include "maps/echo_addresses.h"
#include "maps/node_addresses.h"
#include "path/answer/answer.h"
#include "path/packet.h"
#include "path/schedule/backend_select.h"

/* True if the IP header is followed by the message, or only by the header of a fragment. */
static inline bool echo_header_is_plain(const struct packet *packet)
{
	__u32 header = packet->l4 - packet->l3;

	if (packet->v4)
		return header == IPV4_HEADER_LENGTH;
	return header == IPV6_HEADER_LENGTH + (packet->fragment ? sizeof(struct ipv6_fragment) : 0);
}

/* Return the verdict on an echo request. At egress it is one of this node's own. */
static inline int echo_verdict(struct __sk_buff *skb, struct packet *packet)
{
	struct address *address = &packet->flow.destination;
	int verdict;

	if (echo_address_has(address)) {
		if (node_addresses.lookup(address)) /* the kernel answers */
			return VERDICT_NONE;
		if (echo_header_is_plain(packet) && sender_may_be_answered(skb, packet))
			return VERDICT_ECHO;
	}
	if (packet->flow.hook == HOOK_EGRESS)
		return VERDICT_NONE;
	verdict = guard(address, &packet->first.choice.service);
	choice_refused(&packet->first.choice, verdict);
	return verdict;
}
