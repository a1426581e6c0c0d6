/*
 * Schedules that keep an address at the same backends: the rules of ip_vs_lblc.c and ip_vs_lblcr.c.
 * lblc has one backend for each address. lblcr has a set, and the least loaded member is chosen. If
 * the chosen backend is overloaded, the least loaded of all backends is chosen. It replaces the
 * backend (lblc) or joins the set (lblcr).
 *
 * A comparison has some 220 instructions for each backend, so it is done where few paths lead to
 * it: in a step of its own for packets, and at the beginning of the program that explains.
 */
#pragma once

#include "lib/verifier.h"
#include "maps/candidates.h"
#include "maps/frontends.h"
#include "maps/localities.h"
#include "maps/settings.h"
#include "path/schedule/loads.h"
#include "path/schedule/work.h"

#define LOCALITY_EXPIRES (24 * 3600 * NS_PER_SECOND) /* lblcr_expiration of ip_vs, by default */

/*
 * 1 if two ids are the same, else 0; without a branch, which the compiler makes of what it knows.
 */
static inline __u64 same_counters(__u32 left, __u32 right)
{
	__u64 difference = left ^ right;

	asm("" : "+r"(difference));
	return (difference - 1) >> 63;
}

/* 1 if a backend is one of an address, else 0. `joined`: its number, if it has one. */
static inline __u64 locality_has(const struct locality *locality, __u32 counters, __u64 *joined)
{
	const struct locality_member *first = &locality->members[locality_first(counters)];
	const struct locality_member *second = &locality->members[locality_second(counters)];
	__u64 is_first = same_counters(first->counters, counters);
	__u64 is_second = same_counters(second->counters, counters);

	*joined = (first->joined & -is_first) | (second->joined & -is_second);
	return is_first | is_second | same_counters(locality->last, counters);
}

/* Begin to look for the least loaded member, or with `sign` -1 for the most loaded one. */
static inline void member_begin(struct compared_member *best, __s64 sign)
{
	best->cost = sign * (1LL << 46); /* as in comparison_begin() */
	best->weight = 1;
	best->joined = 0;
	best->counters = 0;
}

/*
 * Compare one more backend with the best one so far. Return all bits if it is the better one now,
 * else 0. Of equal ones that is the one that joined later: ip_vs puts a member before all others.
 */
static inline __u64 member_compare(struct compared_member *best, const struct compared *backend,
				   __u64 member, __u64 joined, __u32 counters, __s64 sign)
{
	__u64 better = sign * (backend->cost * best->weight - best->cost * backend->weight);

	better -= (best->joined - joined) >> 63;
	better = -(better >> 63 & member);
	best->cost ^= (best->cost ^ backend->cost) & better;
	best->weight ^= (best->weight ^ backend->weight) & better;
	best->joined ^= (best->joined ^ joined) & better;
	best->counters ^= (best->counters ^ counters) & better;
	return better;
}

/* Compare one more backend with all before it, and with the members of the address. */
static inline bool locality_compare(struct schedule_work *work, const struct locality *locality,
				    const struct candidate *candidate, __u32 position)
{
	__u64 joined, member, better, busy;
	struct compared backend;

	if (!compared_read(&backend, work, candidate))
		return false;
	comparison_choose(work, &backend, position);
	work->idle |= (backend.active * 2 - backend.weight) >> 63;
	busy = (backend.weight - backend.active) >> 63;
	member = locality_has(locality, candidate->counters, &joined);
	work->members += member;
	better = member_compare(&work->least, &backend, member, joined, candidate->counters, 1);
	work->kept_place ^= (work->kept_place ^ position) & better;
	work->kept_busy ^= (work->kept_busy ^ busy) & better;
	member_compare(&work->most, &backend, member, joined, candidate->counters, -1);
	return true;
}

static inline void locality_leave(struct locality *locality, __u32 counters, __u64 now)
{
	struct locality_member *first = &locality->members[locality_first(counters)];
	struct locality_member *second = &locality->members[locality_second(counters)];

	first->counters &= same_counters(first->counters, counters) - 1;
	second->counters &= same_counters(second->counters, counters) - 1;
	locality->changed = now;
}

/* Have the member at a place move to its other one. False if that is taken, too. */
static inline bool locality_move(struct locality *locality, __u32 at)
{
	struct locality_member *member = &locality->members[at & (LOCALITY_MEMBERS - 1)];
	__u32 counters = member->counters;
	__u32 other = locality_first(counters) ^ locality_second(counters) ^ at;
	struct locality_member *to;

	/* Masked after this: the verifier of Linux 6.1 forgets the bounds of an exclusive or. */
	asm volatile("" : "+r"(other));
	to = &locality->members[other & (LOCALITY_MEMBERS - 1)];
	if (to->counters)
		return false;
	*to = *member;
	return true;
}

/*
 * Have a backend join, unless it has. Where both of its places are taken by members that cannot
 * move, the older one goes.
 */
static inline void locality_join(struct locality *locality, __u32 counters, __u64 now)
{
	__u32 first = locality_first(counters), second = locality_second(counters), at = first;
	__u64 joined;

	if (locality_has(locality, counters, &joined))
		return;
	if (locality->members[first].counters && !locality_move(locality, first) &&
	    (!locality->members[second].counters || locality_move(locality, second) ||
	     locality->members[second].joined < locality->members[first].joined))
		at = second;
	locality->members[at & (LOCALITY_MEMBERS - 1)] = (struct locality_member){
		.counters = counters,
		.joined = ++locality->joins,
	};
	locality->changed = now;
}

/*
 * Compare all backends of a policy. False if the address has no entry or such clients have no
 * backend: then there is nothing that it could keep. `counted`: what follows for later connections
 * is written.
 */
static inline bool compare_local(struct schedule_work *work, const struct frontend *frontend,
				 bool counted)
{
	struct candidates_chunk *chunk;
	struct locality *locality;
	__u64 now;

	work->locality.service = frontend->service;
	work->locality.address = work->asked.address;
	/* AMONG_ALL where the first slot is 0. */
	work->locality.local = (work->key.first | -work->key.first) >> 31 << work->shift;
	work->locality.schedule = frontend->schedule;
	work->key.chunk = 0;
	locality = localities.lookup(&work->locality);
	if (!locality || !work->size)
		return false;
	chunk = candidates.lookup(&work->key);
	if (!chunk)
		return false;
	work->idle = 0;
	work->members = 0;
	work->kept_busy = 0;
	member_begin(&work->least, 1);
	member_begin(&work->most, -1);
#pragma clang loop unroll(disable)
	for (int position = 0; position < CANDIDATES; position++) {
		if (position >= work->size ||
		    !locality_compare(work, locality, &chunk->rows[position], position))
			break; /* as in compare_all() */
	}
	AS_IN_MEMORY();
	now = bpf_ktime_get_coarse_ns();
	if (counted && work->members > 1 && frontend->schedule == SCHEDULE_LBLCR &&
	    (__s64)(now - locality->changed) > (__s64)LOCALITY_EXPIRES)
		locality_leave(locality, work->most.counters, now);
	if (work->members && !(work->kept_busy & work->idle)) {
		work->place = work->kept_place;
	} else if (counted) {
		__u32 chosen = chunk->rows[work->place % CANDIDATES].counters;

		if (frontend->schedule == SCHEDULE_LBLC)
			locality->last = chosen;
		else
			locality_join(locality, chosen, now);
	}
	return true;
}

/*
 * Find the position of a backend for schedule_least(), if the address keeps its backends.
 * `counted`: write what later connections need. For the node itself the least loaded of all is
 * chosen, as for its sockets: the verifier would follow too much code for them.
 */
static inline void schedule_locality(const struct frontend_key *asked, __u32 class, bool counted)
{
	struct schedule_work *work = schedule_work_get();
	struct frontend *frontend;
	const struct policy *policy;

	if (!work)
		return;
	work->asked = *asked;
	work->done = 0;
	work->stepped = 1;
	frontend = frontend_find(&work->asked);
	if (!frontend || frontend->schedule < SCHEDULE_LBLC)
		return;
	policy = policy_for(frontend, class);
	schedule_begin(work, frontend, policy, bpf_get_prandom_u32());
	if (work->size > CANDIDATES)
		compare_two(work);
	else if (class == CLIENT_NODE || !compare_local(work, frontend, counted))
		compare_all(work);
	AS_IN_MEMORY();
	work->done = 1;
}
