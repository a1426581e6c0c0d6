/* STEP_SCHEDULE: a first packet to an address that keeps its backends, or that may overflow. */
#pragma once

#include "maps/frontends.h"
#include "path/packet.h"
#include "path/schedule/locality.h"
#include "path/schedule/spill.h"
#include "path/schedule/work.h"
#include "path/tail_calls.h"

/*
 * Find the place of a first packet's backend, if the address that it is for keeps its backends, and
 * whether it spills over. Then begin anew with the packet. (Here the verifier follows the comparison
 * once.)
 */
static inline int first_packet_schedule(struct __sk_buff *skb, struct packet *packet)
{
	struct frontend_key asked = {
		.address = packet->flow.destination,
		.port = packet->flow.destination_port,
		.protocol = packet->flow.protocol,
	};

	struct schedule_work *work = schedule_work_get();

	if (work)
		spill_decide(work);
	schedule_locality(&asked, packet->first.client.class, true);
	return tail_call(skb, STEP_FIRST);
}
