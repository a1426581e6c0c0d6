/* Choosing a backend as a subprogram: with backends on trial, and with limits of open connections. */
#pragma once

#include "lib/address.h"
#include "lib/subprograms.h"
#include "maps/backends.h"
#include "maps/frontends.h"
#include "maps/quarantined.h"
#include "path/client.h"
#include "path/schedule/backend_select.h"
#include "path/schedule/connection_limit.h"
#include "path/schedule/spill.h"
#include "path/schedule/work.h"

/*
 * Send a connection to a backend on trial of its frontend, unless another connection is probing
 * that backend. Of several such backends one is chosen at random.
 */
static inline void choose_trial(struct frontend_key *frontend_key, const struct client *client,
				struct choice *choice)
{
	struct frontend *frontend = frontend_find(frontend_key);
	const struct policy *policy;
	struct backend_key key = {};
	struct backend copy;
	__u32 trials;

	choice->watched = WATCHED;
	if (!frontend)
		return;
	policy = policy_for(frontend, client->class);
	trials = policy->spills ? spill_trials(frontend, policy) : policy->trials;
	if (!trials)
		return;
	key.slot = policy->first + policy->size + bpf_get_prandom_u32() % trials;
	if (!slot_read(frontend_key, frontend, &key, choice, &copy) ||
	    backend_is_full(frontend, frontend_key->protocol, copy.counters) ||
	    !trial_claim(copy.counters))
		return;
	choice->backend = copy;
	choice->counts = not_zero(choice->counts);
	choice->watched = WATCHED_TRIAL;
}

/* What choose() is asked, and its answer. */
struct choosing {
	struct frontend_key asked;
	struct client client;
	struct choice choice;
	__u32 chooser; /* of enum chooser */
};

enum argument_size {
	ARGUMENT_CHOOSE = sizeof(struct choosing),
	ARGUMENT_SPILL = sizeof(struct choosing),
};

/* choose_backend() as a subprogram. An address 127.x.y.z is as good as 127.0.0.1. */
static int (*choose)(struct choosing *choosing) = (void *)SUBPROGRAM_CHOOSE;

int subprogram_choose(struct choosing *choosing)
{
	struct frontend_key key;
	int verdict;

	if (!choosing)
		return VERDICT_DROP;
	/* Linux 6.1 takes a key of a map from here, and not from its caller's memory. */
	key = choosing->asked;
	loopback_normalize(&key.address);
	if (choosing->chooser == CHOOSER_TRIAL) {
		choose_trial(&key, &choosing->client, &choosing->choice);
		return VERDICT_DNAT;
	}
	if (choosing->chooser != CHOOSER_ROOM) {
		verdict = choose_backend(&key, &choosing->client, &choosing->choice,
					 choosing->chooser);
		if (choosing->chooser != CHOOSER_EXPLAIN || verdict != VERDICT_DNAT)
			return verdict;
	}
	return choose_with_room(&key, &choosing->client, &choosing->choice) ? VERDICT_DNAT :
									      VERDICT_REJECT;
}

/* Decide whether a connection overflows, after choose() has asked for that. */
static int (*decide_spill)(struct choosing *choosing) = (void *)SUBPROGRAM_SPILL;

int subprogram_spill(struct choosing *choosing)
{
	struct schedule_work *work = schedule_work_get();

	if (work)
		spill_decide(work);
	return 0;
}
