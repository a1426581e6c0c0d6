/*
 * The choice of a backend alone, for `bpfsvc explain`: nothing is written and nothing is counted.
 */
#pragma once

#include "lib/map.h"
#include "lib/verifier.h"
#include "lib/wire.h"
#include "maps/backends.h"
#include "maps/frontends.h"
#include "maps/node_addresses.h"
#include "maps/settings.h"
#include "path/client.h"
#include "path/schedule/backend_select.h"
#include "path/schedule/choose.h"
#include "path/schedule/locality.h"
#include "path/schedule/work.h"

/* The question, as data of a test packet. `choice` is empty, and the answer is written there. */
struct question {
	__u8 ethernet[ETH_HLEN];
	__u8 zero[2];
	struct frontend_key frontend;
	struct client client;
	struct choice choice;
	__u32 spilled; /* the client may be given any backend that serves */
};

DESCRIBE(question);

static inline int explain_question(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct choosing choosing = {.chooser = CHOOSER_EXPLAIN | CHOOSER_UNDECIDED};
	struct schedule_work *work = schedule_work_get();
	struct question question;
	int verdict;

	if (!settings || !work || bpf_skb_load_bytes(skb, 0, &question, sizeof(question)))
		return -1;
	/*
	 * In memory of a map: otherwise the verifier would follow all that comes after once for
	 * each way to get here.
	 */
	work->asked = question.frontend;
	loopback_normalize(&work->asked.address);
	work->class = question.client.class;
	if (work->class == CLIENT_UNKNOWN)
		work->class = client_class(settings, skb->ifindex, &question.client.address);
	AS_IN_MEMORY();
	question.client.class = work->class;
	choosing.asked = work->asked;
	choosing.client = question.client;
	work->spilling.needed = 0;
	work->spilling.spills = 0;
	/* Without a branch, behind which the verifier would follow the rest twice. */
	choose(&choosing);
	decide_spill(&choosing);
	schedule_locality(&work->asked, work->class, false);
	choosing.chooser = CHOOSER_EXPLAIN;
	verdict = choose(&choosing);
	question.choice = choosing.choice;
	question.spilled = work->spilling.spills & 1;
	work->stepped = 0;		 /* no packet follows */
	question.frontend = work->asked; /* the key of the entry that is found */
	if (bpf_skb_store_bytes(skb, 0, &question, sizeof(question), 0))
		return -1;
	return verdict;
}
