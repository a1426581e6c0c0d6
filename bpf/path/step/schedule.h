/*
 * STEP_SCHEDULE: a first packet to an address that keeps its backends, or to a service port that
 * may overflow.
 */
#pragma once

#include "maps/frontends.h"
#include "path/packet.h"
#include "path/schedule/locality.h"
#include "path/schedule/spill.h"
#include "path/schedule/work.h"
#include "path/tail_calls.h"

/*
 * Find the position of a first packet's backend if the address keeps its backends, and decide
 * whether the connection overflows. Then begin STEP_FIRST anew. (The verifier follows the
 * comparison only in this program.)
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
