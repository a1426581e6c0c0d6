/*
 * Locality overflow: clients use the near endpoints. A new connection overflows to all serving
 * endpoints if the near ones carry too much.
 */
#pragma once

#include "lib/verifier.h"
#include "maps/backend_loads.h"
#include "maps/frontends.h"
#include "maps/spills.h"
#include "path/schedule/work.h"

/* Add up the loads of the backends of an entry; the loads of the near ones also apart. */
static inline void spill_sum(struct spilling *spilling, const struct spill *spill)
{
	spilling->near = 0;
	spilling->sum = 0;
#pragma clang loop unroll(disable)
	for (int position = 0; position < SPILL_COMPARED; position++) {
		struct backend_load *load;
		__s64 number;

		if (position >= spill->compared)
			break;
		load = backend_loads.lookup((__u32 *)&spill->counters[position]);
		if (!load)
			break; /* which cannot be: as in comparison_add() */
		number = load_active(load->connections);
		number += load_inactive(load->connections) & -(__s64)spill->inactive;
		spilling->sum += number;
		spilling->near += number & ((__s64)position - spill->near) >> 63;
	}
	AS_IN_MEMORY();
}

/* Ask spill_decide() to decide for this service. `needed`: 1 if its policy may overflow, else 0. */
static inline void spill_ask(struct schedule_work *work, const struct frontend *frontend,
			     __u32 needed)
{
	work->spilling.key.service = frontend->service;
	work->spilling.key.generation = frontend->generation;
	work->spilling.needed = needed;
	work->spilling.spills = 0;
	work->spilling.untried = MAX_TRIALS;
	AS_IN_MEMORY();
}

/*
 * Decide whether a new connection of the service of spill_ask() overflows, on this CPU. The choice
 * that follows reads the decision by policy_spill().
 */
static inline void spill_decide(struct schedule_work *work)
{
	struct spilling *spilling = &work->spilling;
	struct spill *spill;
	__u64 over;

	if (!spilling->needed)
		return;
	spill = spills.lookup(&spilling->key);
	if (!spill)
		return;
	spill_sum(spilling, spill);
	/* Below 0 if the near endpoints carry too much. */
	over = (spilling->sum - spilling->near) * spill->far_factor -
	       spilling->near * spill->near_factor;
	spilling->spills = over >> 63;
	spilling->untried = spill->far_trials & ((over >> 63) - 1);
	work->policies[1].first = spill->first;
	work->policies[1].size = spill->size;
	work->policies[1].table = spill->table;
	work->policies[1].spills = 1;
	AS_IN_MEMORY();
}

/*
 * Return 1 if the connection at hand overflows: its policy may, and spill_decide() said so for the
 * service and generation of `work->key`. Else 0; without a branch.
 */
static inline __u64 spills_now(const struct schedule_work *work, const struct policy *policy)
{
	__u64 other = *(__u64 *)&work->key ^ *(__u64 *)&work->spilling.key;

	other |= -other;
	asm("" : "+r"(other));
	return work->spilling.spills & policy->spills & ~(other >> 63);
}

/*
 * Return how many backends on trial the connection at hand may try. While nothing overflows, it may
 * try no far one.
 */
static inline __u32 spill_trials(const struct frontend *frontend, const struct policy *policy)
{
	const struct schedule_work *work = schedule_work_get();

	if (!work || work->spilling.key.service != frontend->service ||
	    work->spilling.key.generation != frontend->generation ||
	    work->spilling.untried >= policy->trials)
		return 0;
	return policy->trials - work->spilling.untried;
}

/*
 * Return the policy to choose from: all serving endpoints if the connection overflows. (Without a
 * branch, as for every policy that has a schedule.)
 */
static inline const struct policy *policy_spill(struct schedule_work *work,
						const struct policy *policy)
{
	work->policies[0] = *policy;
	return &work->policies[spills_now(work, policy) & 1];
}
