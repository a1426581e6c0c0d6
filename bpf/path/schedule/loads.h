/*
 * Schedules that compare how many connections the backends have: the rules of ip_vs_lc.c, _wlc.c,
 * _sed.c, _nq.c, _ovf.c and _twos.c. What a backend costs is compared by its weight,
 * cost / weight, and the first of equal ones is chosen.
 */
#pragma once

#include "lib/verifier.h"
#include "maps/backend_loads.h"
#include "maps/candidates.h"
#include "maps/frontends.h"
#include "maps/schedule_tables.h"
#include "path/schedule/spill.h"
#include "path/schedule/work.h"

#define NO_PLACE 0xffffffff /* of SCHEDULE_OVF: the client has to be refused */

/* All bits if a number says so, else none; without a branch. */
static inline __u32 schedule_refuses(__u32 number, __u8 schedule)
{
	__u64 differences = (number ^ NO_PLACE) | (schedule ^ SCHEDULE_OVF);

	return (differences - 1) >> 32;
}

/* What a schedule compares. */
enum comparison {
	COMPARE_OVERHEAD = 1, /* 256 for each active connection, and one for each other */
	COMPARE_DELAY = 2,    /* active connections, and the new one */
	COMPARE_IDLE = 4,     /* the first one without an active connection is chosen */
	COMPARE_LIMITED = 8,  /* only with as many active ones as the weight, or less */
};

#define COMPARED_BY(schedule, comparison) ((__u32)(comparison) << 4 * ((schedule)-SCHEDULE_LC))

/* Four bits for each schedule: a branch for each would be followed to the end. */
#define COMPARISONS                                                                               \
	(COMPARED_BY(SCHEDULE_LC, COMPARE_OVERHEAD) |                                             \
	 COMPARED_BY(SCHEDULE_WLC, COMPARE_OVERHEAD) | COMPARED_BY(SCHEDULE_SED, COMPARE_DELAY) | \
	 COMPARED_BY(SCHEDULE_NQ, COMPARE_DELAY | COMPARE_IDLE) |                                 \
	 COMPARED_BY(SCHEDULE_OVF, COMPARE_LIMITED) |                                             \
	 COMPARED_BY(SCHEDULE_TWOS, COMPARE_OVERHEAD) |                                           \
	 COMPARED_BY(SCHEDULE_LBLC, COMPARE_OVERHEAD) |                                           \
	 COMPARED_BY(SCHEDULE_LBLCR, COMPARE_OVERHEAD))

/* What is compared of one backend. */
struct compared {
	__u64 active;
	__u64 cost;
	__u64 weight;
};

/* Begin a comparison. `position`: the choice if there is no backend to compare. */
static inline void comparison_begin(struct schedule_work *work, __u8 schedule, __u32 position)
{
	__u32 by = COMPARISONS >> 4 * ((schedule - SCHEDULE_LC) & 7) & 0xf;
	__u32 overhead = by & COMPARE_OVERHEAD, delay = (by & COMPARE_DELAY) / COMPARE_DELAY;

	work->of_active = overhead * 256 + delay;
	work->of_inactive = overhead;
	work->of_next = delay;
	work->busy_first = (__u64)((by & COMPARE_IDLE) / COMPARE_IDLE) - 1;
	work->limited = -(__u64)((by & COMPARE_LIMITED) / COMPARE_LIMITED);
	work->cost = 1ULL << 46; /* more than any, also when both are multiplied by weights */
	work->weight = 1;
	work->place = position;
}

/* Read the load and the weight of a backend. False if the backend has no counters. */
static inline bool compared_read(struct compared *backend, const struct schedule_work *work,
				 const struct candidate *candidate)
{
	struct backend_load *load = backend_loads.lookup((__u32 *)&candidate->counters);
	__u64 active, inactive, cost;

	if (!load)
		return false;
	active = load_active(load->connections);
	inactive = load_inactive(load->connections);
	/* If the compiler knew that these are 32 bits, it would make branches of what follows. */
	asm("" : "+r"(active));
	cost = active * work->of_active + inactive * work->of_inactive + work->of_next;
	backend->cost = cost & (work->busy_first | (((active - 1) >> 63) - 1));
	backend->active = active;
	backend->weight = candidate->weight;
	return true;
}

/*
 * Compare a backend with the best one so far. There is no branch: of 64 backends each would double
 * what the verifier follows.
 */
static inline void comparison_choose(struct schedule_work *work, const struct compared *backend,
				     __u32 position)
{
	/* All numbers are far below 2^63, so the sign says which one is greater. */
	__u64 better = (backend->cost * work->weight - work->cost * backend->weight) >> 63;

	better &= ~((backend->weight - backend->active) >> 63 & work->limited);
	better = -better;
	work->cost ^= (work->cost ^ backend->cost) & better;
	work->weight ^= (work->weight ^ backend->weight) & better;
	work->place ^= (work->place ^ position) & better;
}

/*
 * Compare one more backend. False if it has no counters, which cannot be: a loop ends there, because
 * the verifier would follow the rest of the loop anew for each backend that is skipped.
 */
static inline bool comparison_add(struct schedule_work *work, const struct candidate *candidate,
				  __u32 position)
{
	struct compared backend;

	if (!compared_read(&backend, work, candidate))
		return false;
	comparison_choose(work, &backend, position);
	return true;
}

/* Compare all backends of a policy, or the first ones if there are more than in one entry. */
static inline void compare_all(struct schedule_work *work)
{
	struct candidates_chunk *compared_chunk;

	work->key.chunk = 0;
	compared_chunk = candidates.lookup(&work->key);
	if (!compared_chunk)
		return;
	work->place |= work->limited; /* NO_PLACE */
#pragma clang loop unroll(disable)
	for (int position = 0; position < CANDIDATES; position++) {
		if (position >= work->size ||
		    !comparison_add(work, &compared_chunk->rows[position], position))
			break;
	}
}

/*
 * Compare two at random, as likely as their weights say. (ip_vs_twos.c draws from one number more
 * than there are, and the first backend has that.)
 */
static inline void compare_two(struct schedule_work *work)
{
#pragma clang loop unroll(disable)
	for (int draw = 0; draw < 2; draw++) {
		__u32 drawn = bpf_get_prandom_u32() % (work->places + 1);
		struct candidates_chunk *compared_chunk;
		struct schedule_chunk *chunk;

		work->drawn = drawn - ((drawn | -drawn) >> 31);
		work->slot = work->drawn;
		work->key.chunk = work->drawn / TABLE_CHUNK;
		chunk = schedule_tables.lookup(&work->key);
		if (chunk)
			work->slot = chunk->slots[work->drawn % TABLE_CHUNK];
		AS_IN_MEMORY();
		work->key.chunk = work->slot / CANDIDATES;
		compared_chunk = candidates.lookup(&work->key);
		if (compared_chunk)
			comparison_add(work, &compared_chunk->rows[work->slot % CANDIDATES],
				       work->drawn);
	}
}

/* Begin a comparison of the backends of a policy. */
static inline void schedule_begin(struct schedule_work *work, const struct frontend *frontend,
				  const struct policy *policy, __u32 random)
{
	comparison_begin(work, frontend->schedule, random);
	work->key.service = frontend->service;
	work->key.generation = frontend->generation;
	policy = policy_spill(work, policy);
	work->key.first = policy->first;
	work->size = policy->size;
	work->places = schedule_places(policy);
	work->shift = policy->spills;
	AS_IN_MEMORY();
}

/*
 * Set `work->place` to the place of a policy's schedule that is least loaded, or to NO_PLACE; to
 * `random` where the entries change at this moment. If schedule_locality() has set it before, there
 * is nothing to compare.
 */
static inline void schedule_least(struct schedule_work *work, const struct frontend *frontend,
				  const struct policy *policy, __u32 random)
{
	__u32 other = not_zero((work->key.service ^ frontend->service) |
			       (work->key.generation ^ frontend->generation));
	/* What was done for another service is of no use: the frontend has changed meanwhile. */
	__u32 done = work->done & ~other;

	work->done = 0;
	schedule_begin(work, frontend, policy, random ^ ((random ^ work->place) & -done));
	work->size &= done - 1;
	AS_IN_MEMORY();
	if (frontend->schedule == SCHEDULE_TWOS ||
	    (work->size > CANDIDATES && frontend->schedule != SCHEDULE_OVF))
		compare_two(work);
	else
		compare_all(work);
	AS_IN_MEMORY();
}
