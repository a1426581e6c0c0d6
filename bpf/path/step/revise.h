/*
 * STEP_REVISE: a first packet that may need another backend than the one that was chosen, by rules
 * that the verifier follows only in this program.
 */
#pragma once

#include "maps/frontends.h"
#include "path/fragments.h"
#include "path/packet.h"
#include "path/schedule/backend_select.h"
#include "path/schedule/choose.h"
#include "path/tail_calls.h"

/*
 * Send a first packet to a backend on trial, unless another connection is probing it; else to a
 * backend with room, if the Service limits connections. Refuse the packet if all are full.
 */
static inline int first_packet_revise(struct __sk_buff *skb, struct packet *packet)
{
	struct frontend_key asked = {
		.address = packet->flow.destination,
		.port = packet->flow.destination_port,
		.protocol = packet->flow.protocol,
	};

	if (packet->first.choice.watched == WATCHED_MAY_TRY)
		choose_trial(&asked, &packet->first.client, &packet->first.choice);
	if (choose_with_room(&asked, &packet->first.client, &packet->first.choice))
		return tail_call(skb, STEP_OPEN);
	choice_refused(&packet->first.choice, VERDICT_REJECT);
	packet->first.verdict = VERDICT_REJECT;
	fragment_passed(packet);
	return tail_call(skb, STEP_REJECT);
}
