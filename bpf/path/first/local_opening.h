/*
 * Connections that a process of this node opens to a frontend that must answer by silence. A socket
 * hook could only refuse them at once, so connect() lets them go on (socket/lb.h). Their SYN is
 * dropped where it leaves the node: as with kube-proxy, the client tries again until it gives up.
 * Connections to a frontend that refuses come here where connect() cannot say so (before Linux
 * 5.18), and those of processes outside of the cgroup. Their SYN is answered by a reset. Other
 * packets of processes outside of the cgroup are left alone.
 */
#pragma once

#include "lib/address.h"
#include "maps/frontends.h"
#include "maps/settings.h"
#include "maps/source_ranges.h"
#include "path/packet.h"
#include "path/schedule/backend_select.h"

/*
 * True if both addresses are allowed that the node may have for connect(): the address of the
 * packet, and the address that is assumed for a socket that is not bound.
 */
static inline bool local_client_allowed(const struct settings *settings,
					const struct packet *packet, __u32 service)
{
	const struct address *own = &settings->node_v4 + family_offset(&packet->flow.destination);

	return source_allowed(service, &packet->flow.source) && source_allowed(service, own);
}

/* Return the verdict on the SYN of a process of this node; NONE if it may leave. */
static inline int local_opening_verdict(const struct settings *settings, struct packet *packet)
{
	struct frontend_key key = {
		.address = packet->flow.destination,
		.port = packet->flow.destination_port,
		.protocol = packet->flow.protocol,
	};
	struct frontend *frontend = frontends.lookup(&key);
	int verdict = VERDICT_NONE;

	__builtin_memset(&packet->first.choice, 0, sizeof(packet->first.choice));
	if (!frontend) {
		if (guard(&packet->flow.destination, &packet->first.choice.service) == VERDICT_DROP)
			verdict = VERDICT_DROP;
	} else {
		packet->first.choice.service = frontend->service;
		if (frontend->restricted &&
		    !local_client_allowed(settings, packet, frontend->service))
			verdict = VERDICT_FORBIDDEN;
		else if (!frontend->node.size)
			verdict = frontend->node.reject ? VERDICT_REJECT : VERDICT_DROP;
	}
	packet->first.verdict = verdict;
	choice_refused(&packet->first.choice, verdict);
	return verdict;
}
