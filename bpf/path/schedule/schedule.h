/*
 * The position in a Service's schedule that a client gets: by a random number, in turn, by a hash,
 * or by the loads of the backends. The hashes are ip_vs's.
 */
#pragma once

#include "lib/address.h"
#include "lib/atomic.h"
#include "lib/verifier.h"
#include "maps/backends.h"
#include "maps/frontends.h"
#include "maps/schedule_rounds.h"
#include "maps/schedule_tables.h"
#include "path/client.h"
#include "path/schedule/loads.h"
#include "path/schedule/spill.h"
#include "path/schedule/work.h"

/* An address as one number in host order, as ip_vs folds it. */
static inline __u32 address_folded(const struct address *address)
{
	__u32 before = address->words[0] ^ address->words[1] ^ address->words[2];

	return bpf_ntohl(address->words[3] ^ (before & -family_offset(address)));
}

/* ip_vs_sh.c and ip_vs_dh.c, with tables of 256 places: multiplied by the golden ratio. */
static inline __u32 multiplicative_hash(__u32 value)
{
	return value * 0x61c88647 >> 24;
}

static inline __u64 rotated(__u64 value, int bits)
{
	return value << bits | value >> (64 - bits);
}

struct siphash {
	__u64 v0, v1, v2, v3;
};

static inline void siphash_round(struct siphash *state)
{
	state->v0 += state->v1;
	state->v1 = rotated(state->v1, 13) ^ state->v0;
	state->v0 = rotated(state->v0, 32);
	state->v2 += state->v3;
	state->v3 = rotated(state->v3, 16) ^ state->v2;
	state->v0 += state->v3;
	state->v3 = rotated(state->v3, 21) ^ state->v0;
	state->v2 += state->v1;
	state->v1 = rotated(state->v1, 17) ^ state->v2;
	state->v2 = rotated(state->v2, 32);
}

#define MAGLEV_KEY 2654435761ULL /* both halves of the key; of ip_vs_mh.c */

/*
 * SipHash-1-3 of four bytes (https://www.aumasson.jp/siphash/siphash.pdf), as ip_vs_mh.c uses it.
 */
static inline __u32 maglev_hash(__u32 value)
{
	struct siphash state = {
		.v0 = 0x736f6d6570736575ULL ^ MAGLEV_KEY,
		.v1 = 0x646f72616e646f6dULL ^ MAGLEV_KEY,
		.v2 = 0x6c7967656e657261ULL ^ MAGLEV_KEY,
		.v3 = 0x7465646279746573ULL ^ MAGLEV_KEY,
	};
	__u64 last = sizeof(value) * 1ULL << 56 | value;

	state.v3 ^= last;
	siphash_round(&state);
	state.v0 ^= last;
	state.v2 ^= 0xff;
	siphash_round(&state);
	siphash_round(&state);
	siphash_round(&state);
	return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

/* What a number is made of. */
enum schedule_part {
	PART_RANDOM = 1,
	PART_MULTIPLIED = 2,
	PART_MAGLEV = 4,
	PART_PORT = 8,	       /* of the client, in a hash */
	PART_DESTINATION = 16, /* in place of the client's address */
};

#define PARTS_OF(schedule, parts) ((__u64)(parts) << 8 * (schedule))

/* The parts of each schedule, a byte for each: a branch for each would be followed to the end. */
#define PARTS                                                                             \
	(PARTS_OF(SCHEDULE_RANDOM, PART_RANDOM) | PARTS_OF(SCHEDULE_ROUND, PART_RANDOM) | \
	 PARTS_OF(SCHEDULE_SOURCE, PART_MULTIPLIED) |                                     \
	 PARTS_OF(SCHEDULE_SOURCE_PORT, PART_MULTIPLIED | PART_PORT) |                    \
	 PARTS_OF(SCHEDULE_DESTINATION, PART_MULTIPLIED | PART_DESTINATION) |             \
	 PARTS_OF(SCHEDULE_MAGLEV, PART_MAGLEV) |                                         \
	 PARTS_OF(SCHEDULE_MAGLEV_PORT, PART_MAGLEV | PART_PORT))

/* All bits if `parts` has `part`, else none. */
static inline __u32 part_mask(__u32 parts, enum schedule_part part)
{
	return -((parts & part) / part);
}

/* Set `work->number` to the number of a schedule that does not compare loads. */
static inline void schedule_static(struct schedule_work *work, const struct frontend *frontend,
				   const struct address *asked, const struct client *client,
				   __u32 random, bool counted)
{
	__u32 parts = PARTS >> (8 * (frontend->schedule & 7)) & 0xff;
	__u32 to = part_mask(parts, PART_DESTINATION);
	__u32 value = (address_folded(asked) & to) | (address_folded(&client->address) & ~to);
	struct schedule_round *round;
	__u64 *turns;

	value += bpf_ntohs(client->port) & part_mask(parts, PART_PORT);
	work->number = (random & part_mask(parts, PART_RANDOM)) |
		       (multiplicative_hash(value) & part_mask(parts, PART_MULTIPLIED)) |
		       (maglev_hash(value) & part_mask(parts, PART_MAGLEV));
	work->key.service = frontend->service;
	work->key.generation = frontend->generation;
	work->shift = spills_now(work, policy_for(frontend, client->class));
	round = schedule_rounds.lookup(&work->key.service);
	if (!round)
		return;
	turns = &round->connections;
	turns += work->shift & 1;
	work->number = counted ? atomic_fetch_and_add(turns, 1) : *turns;
}

/*
 * Return the number that a schedule gives to a client's connection. `random`: the number that a
 * random schedule gives. `counted`: the connection takes its turn. Only services that take turns
 * have an entry in schedule_rounds.
 */
static inline __u32 schedule_number(const struct frontend *frontend, const struct address *asked,
				    const struct client *client, __u32 random, bool counted)
{
	__u32 compared = -schedule_counts(frontend->schedule);
	struct schedule_work *work = schedule_work_get();

	if (!work)
		return random;
	if (compared)
		schedule_least(work, frontend, policy_for(frontend, client->class), random);
	else
		schedule_static(work, frontend, asked, client, random, counted);
	AS_IN_MEMORY();
	work->number = (work->number & ~compared) | (work->place & compared);
	AS_IN_MEMORY();
	return work->number;
}

/*
 * Set `key` to the slot that has the place of a number, or to one without a backend if the client
 * has to be refused. `key` has service and generation, `policy` has endpoints. Only policies that
 * have a table have entries in schedule_tables.
 */
static inline void schedule_apply(struct backend_key *key, const struct policy *policy,
				  __u32 number, __u8 schedule)
{
	struct schedule_chunk *chunk;
	struct schedule_work *work = schedule_work_get();

	if (!work)
		return;
	work->key.service = key->service;
	work->key.generation = key->generation;
	policy = policy_spill(work, policy);
	work->number = number % schedule_places(policy);
	work->slot = work->number;
	work->key.first = policy->first;
	work->key.chunk = work->number / TABLE_CHUNK;
	chunk = schedule_tables.lookup(&work->key);
	if (chunk)
		work->slot = chunk->slots[work->number % TABLE_CHUNK];
	AS_IN_MEMORY();
	key->slot = (work->key.first + work->slot) | schedule_refuses(number, schedule);
}

/*
 * True if a packet must take STEP_SCHEDULE first, which calls spill_decide() and
 * schedule_locality(). After that step it is false, once.
 */
static inline bool schedule_is_pending(const struct frontend *frontend, __u32 class)
{
	__u32 spills_over = policy_for(frontend, class)->spills, needed = spills_over;
	struct schedule_work *work;
	__u32 stepped;

	asm("" : "+r"(needed)); /* one branch for both */
	needed |= (SCHEDULE_LBLC - 1 - (__u32)frontend->schedule) >> 31;
	if (!needed)
		return false;
	work = schedule_work_get();
	if (!work)
		return false;
	stepped = work->stepped;
	work->stepped = 0;
	if (stepped)
		return false;
	spill_ask(work, frontend, spills_over);
	return true;
}
