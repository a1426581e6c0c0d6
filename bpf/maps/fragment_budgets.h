
#pragma once

#include "lib/map.h"

/*
 * How often fragments may be queued again on a CPU while they wait for the first one. An attacker
 * could send fragments and never the first one. This limits the share of the processor that they
 * cost.
 */
#define FRAGMENT_ROUNDS 65536	 /* some 20 ms */
#define FRAGMENT_WINDOW_SHIFT 27 /* in 2^27 ns, 0.13 s */

struct fragment_budget {
	__u64 window;
	__u64 rounds;
};

MAP("percpu_array", __u32, struct fragment_budget, fragment_budgets, 1, 0);

static inline bool fragment_budget_take(__u64 now)
{
	__u32 only = 0;
	struct fragment_budget *budget = fragment_budgets.lookup(&only);

	if (!budget)
		return false;
	if (budget->window != now >> FRAGMENT_WINDOW_SHIFT) {
		budget->window = now >> FRAGMENT_WINDOW_SHIFT;
		budget->rounds = 0;
	}
	return budget->rounds++ < FRAGMENT_ROUNDS;
}
