/* A limit of open connections for each backend: another backend, or a refusal, where it is full. */
#pragma once

#include "lib/verifier.h"
#include "lib/wire.h"
#include "maps/backend_loads.h"
#include "maps/backends.h"
#include "maps/frontends.h"
#include "path/client.h"
#include "path/schedule/backend_select.h"
#include "path/schedule/spill.h"
#include "path/schedule/work.h"

/*
 * Return 2^32 times the open connections of a backend: active ones, and of UDP all. `shift`: of
 * open_shift().
 */
static inline __u64 open_connections(const struct backend_load *load, __u32 shift)
{
	return load->connections << shift;
}

/* Where the number is in a load: UDP has no active connections, so its load is that of inactive. */
static inline __u32 open_shift(__u8 protocol)
{
	return not_zero(protocol ^ PROTO_UDP) * 32;
}

/*
 * True if a backend has as many open connections as `frontend` allows. (Other CPUs may choose the
 * backend, too, before this connection is counted.)
 */
static inline bool backend_is_full(const struct frontend *frontend, __u8 protocol, __u32 counters)
{
	struct backend_load *load;

	if (!frontend->limit)
		return false;
	load = backend_loads.lookup(&counters);
	return load && (__s64)open_connections(load, open_shift(protocol)) >> 32 >= frontend->limit;
}

/*
 * Set `work->slot` to the backend of a policy that has the fewest open connections, and `work->cost`
 * to 2^32 times their number, and its position. False where the entries change at this moment. Of
 * more backends than in one entry of candidates, those of one entry at random are compared.
 */
static inline bool compare_room(struct schedule_work *work, const struct frontend *frontend,
				const struct policy *policy)
{
	struct candidates_chunk *chunk;

	work->key.service = frontend->service;
	work->key.generation = frontend->generation;
	policy = policy_spill(work, policy);
	work->key.first = policy->first;
	work->size = policy->size;
	/* The last entry may have few backends: it is used only if it is the first, too. */
	work->key.chunk = work->size / CANDIDATES;
	work->key.chunk = bpf_get_prandom_u32() % (work->key.chunk | !work->key.chunk);
	work->shift = open_shift(work->asked.protocol);
	work->cost = 1ULL << 62; /* more than any */
	AS_IN_MEMORY();
	chunk = candidates.lookup(&work->key);
	if (!chunk)
		return false;
#pragma clang loop unroll(disable)
	for (int position = 0; position < CANDIDATES; position++) {
		struct backend_load *load;
		__u64 number, fewer;

		if (position >= work->size)
			break;
		load = backend_loads.lookup((__u32 *)&chunk->rows[position].counters);
		if (!load)
			break;
		number = open_connections(load, work->shift) | position;
		fewer = (__s64)(number - work->cost) >> 63;
		asm("" : "+r"(fewer)); /* without a branch, which the compiler would make */
		work->cost ^= (work->cost ^ number) & fewer;
	}
	AS_IN_MEMORY();
	work->slot = work->key.first + work->key.chunk * CANDIDATES + work->cost % CANDIDATES;
	return true;
}

/*
 * If the chosen backend is full, take the one with the fewest open connections of those among which
 * it was chosen. False if that is full, too. The choice stays as it is if entries change at this
 * moment.
 */
static inline bool choose_with_room(const struct frontend_key *asked, const struct client *client,
				    struct choice *choice)
{
	struct schedule_work *work = schedule_work_get();
	struct backend_key key = {};
	const struct policy *policy;
	struct frontend *frontend;
	struct backend copy;

	if (choice->counts != CHOICE_LIMITED)
		return true;
	choice->counts = CHOICE_COUNTS;
	if (!work)
		return true;
	work->asked = *asked; /* for the verifier, as in path/agent/explain.h */
	AS_IN_MEMORY();
	frontend = frontend_find(&work->asked);
	if (!frontend || !backend_is_full(frontend, work->asked.protocol, choice->backend.counters))
		return true;
	if (!compare_room(work, frontend, policy_for(frontend, client->class)))
		return true;
	if ((__s64)work->cost >> 32 >= frontend->limit) {
		choice->counts = CHOICE_LIMITED;
		return false;
	}
	key.slot = work->slot;
	/* (An interrupt in a call of a process may have used the memory of this CPU meanwhile.) */
	policy = policy_for(frontend, client->class);
	if (policy_has(policy, key.slot) && slot_read(&work->asked, frontend, &key, choice, &copy))
		choice->backend = copy;
	return true;
}
