/* Choosing a backend for a first packet or for the call of a socket, or refusing it. */
#pragma once

#include "lib/address.h"
#include "lib/subprograms.h"
#include "lib/verifier.h"
#include "lib/wire.h"
#include "maps/affinities.h"
#include "maps/backend_counters.h"
#include "maps/backend_loads.h"
#include "maps/backends.h"
#include "maps/counters.h"
#include "maps/frontends.h"
#include "maps/node_addresses.h"
#include "maps/positions.h"
#include "maps/quarantined.h"
#include "maps/refusals.h"
#include "maps/service_networks.h"
#include "maps/settings.h"
#include "maps/source_ranges.h"
#include "path/client.h"
#include "path/schedule/schedule.h"
#include "path/schedule/spill.h"
#include "path/schedule/work.h"

enum verdict {
	VERDICT_NONE, /* no frontend: the packet or call is left as it is */
	VERDICT_DNAT,
	VERDICT_REJECT,
	VERDICT_DROP,
	VERDICT_RESET,	   /* of an unknown connection: see first/unknown.h */
	VERDICT_FORBIDDEN, /* dropped: the client is not in the source ranges */
	VERDICT_BY_TC,	   /* not chosen: tc sees the connection, with the client's port */
	VERDICT_ECHO,	   /* an echo request that is answered: see first/echo.h */
	VERDICT_SCHEDULE,  /* not chosen: another step is needed first, STEP_SCHEDULE */
};

/* For whom a backend is chosen. */
enum chooser {
	CHOOSER_PACKET,
	CHOOSER_NODE_SOCKET, /* which no tc program translates */
	CHOOSER_POD_SOCKET,
	CHOOSER_TRIAL,	     /* a node's socket that may probe a backend on trial */
	CHOOSER_EXPLAIN = 4, /* nothing is counted */
	/* with one of these, until it is decided whether the connection overflows */
	CHOOSER_UNDECIDED = 8,
	CHOOSER_ROOM = 16, /* a node's socket whose backend may be full */
};

/* What `counts` of a choice says. */
enum choice_counts {
	CHOICE_COUNTS = 1,
	CHOICE_LIMITED, /* the same, and the backend may be full: see choose_with_room() */
};

/*
 * Set `key` to the slot of the client's last backend. False if the policy does not have that, or
 * not any more.
 */
static inline bool affinity_apply(struct backend_key *key, const struct policy *policy,
				  const struct address *client, __u32 seconds)
{
	/* One after the other in the same memory: of this, the stack has little. */
	union {
		struct affinity_key client;
		struct position_key position;
	} asked = {.client = {.service = key->service, .client = *client}};
	struct affinity *last = affinities.lookup(&asked.client);
	struct position *position;

	if (!last || (__s64)(bpf_ktime_get_coarse_ns() - last->seen) >= seconds * NS_PER_SECOND)
		return false;
	asked.position.service = key->service;
	asked.position.generation = key->generation;
	asked.position.address = last->backend;
	asked.position.port = last->port;
	asked.position.zero = 0;
	position = positions.lookup(&asked.position);
	if (!position)
		return false;
	if (policy_has(policy, position->slots[0]))
		key->slot = position->slots[0];
	else if (policy_has(policy, position->slots[1]))
		key->slot = position->slots[1];
	else
		return false;
	return true;
}

/*
 * Set `key` to the slot that a number leads to. False if the choice is left to tc: pods' sockets do
 * not know the client's port yet, and the verifier has less to follow. tc has an entry for each
 * connection. By that entry the connection is counted, is reset when its backend leaves, and is
 * moved when its backend is silent.
 */
static inline bool slot_choose(struct backend_key *key, const struct frontend *frontend,
			       const struct policy *policy, __u64 number, enum chooser chooser)
{
	key->slot = policy->first + (__u32)((number * policy->size) >> 32);
	if (chooser == CHOOSER_POD_SOCKET)
		return !(frontend->schedule | policy->table | frontend->removal |
			 frontend->counted | policy->trials);
	if (frontend->schedule | policy->table | policy->spills)
		schedule_apply(key, policy, number, frontend->schedule);
	return true;
}

/*
 * Return the verdict on an address that is not a frontend: refuse undefined ports of Services, drop
 * packets to unused cluster IPs. `service`: the service port that owns the address; 0 without one.
 */
static inline int guard(const struct address *address, __u32 *service)
{
	struct frontend *frontend = frontend_rest(address);

	*service = frontend ? frontend->service : 0;
	if (frontend)
		return VERDICT_REJECT;
	return service_network_has(address) ? VERDICT_DROP : VERDICT_NONE;
}

/* Note whether the connection is counted, and whether its connect result is recorded. */
static inline void choice_mark(struct choice *choice, const struct frontend *frontend,
			       const struct policy *policy)
{
	choice->counts = schedule_counts(frontend->schedule) | frontend->counted;
	choice->counts += not_zero(frontend->limit); /* CHOICE_LIMITED */
	choice->watched = frontend->watched + not_zero(policy->trials);
}

/*
 * Choose the backend of a frontend that a number leads to, or the client's last one, if the service
 * has session affinity. See choose_backend().
 *
 * The agent may replace entries meanwhile, and the kernel may reuse the memory of a removed entry
 * at once. So the frontend is read again after the backend was copied: only if it still names the
 * same generation was everything valid between the two reads. If not, it is all done once more; two
 * replacements do not fit between four reads that follow each other.
 */
static inline int choose_numbered(struct frontend_key *frontend_key, struct frontend *frontend,
				  const struct client *client, __u64 number, struct choice *choice,
				  enum chooser chooser)
{
#pragma clang loop unroll(disable)
	for (int attempt = 0; attempt < 2; attempt++) {
		struct backend_key key = {};
		struct backend *backend = NULL;
		struct policy policy;
		__u32 affinity;

		if (!frontend)
			return guard(&frontend_key->address, &choice->service);
		choice->service = frontend->service;
		key.service = frontend->service;
		key.generation = frontend->generation;
		affinity = frontend->affinity_seconds;
		policy = *policy_for(frontend, client->class);
		if (frontend->restricted && !source_allowed(key.service, &client->address))
			return VERDICT_FORBIDDEN;
		if (policy.size) {
			if (!slot_choose(&key, frontend, &policy, number, chooser))
				return VERDICT_BY_TC;
			if (affinity && affinity_apply(&key, &policy, &client->address, affinity))
				policy.trials = 0;
			backend = backends.lookup(&key);
			if (backend)
				choice->backend = *backend;
		}
		frontend = frontends.lookup(frontend_key);
		if (!frontend || frontend->service != key.service ||
		    frontend->generation != key.generation)
			continue;
		if (!backend && policy.size && !policy.reject)
			continue;
		if (!backend)
			return policy.reject ? VERDICT_REJECT : VERDICT_DROP;
		choice->masquerade = policy.masquerade;
		choice->sticky = not_zero(affinity);
		choice_mark(choice, frontend, &policy);
		return VERDICT_DNAT;
	}
	return VERDICT_DROP;
}

/* choose_backend() for a frontend that is found, if any. `number`: a random one. */
static inline int choose_found(struct frontend_key *frontend_key, struct frontend *frontend,
			       const struct client *client, __u64 number, struct choice *choice,
			       enum chooser chooser)
{
	if (chooser != CHOOSER_POD_SOCKET && frontend && frontend->schedule)
		number = schedule_number(frontend, &frontend_key->address, client, number,
					 !(chooser & CHOOSER_EXPLAIN));
	return choose_numbered(frontend_key, frontend, client, number, choice, chooser);
}

/* True if it must be decided first whether the connection of a socket overflows. */
static inline bool spill_is_pending(const struct frontend *frontend, __u32 class, __u32 chooser)
{
	struct schedule_work *work;

	if (!(policy_for(frontend, class)->spills & chooser / CHOOSER_UNDECIDED))
		return false;
	work = schedule_work_get();
	if (work)
		spill_ask(work, frontend, 1);
	return true;
}

/*
 * Choose a backend of `frontend_key` for a client: its last one, if the service has session
 * affinity, else the one that the service's schedule gives, mostly one at random, each equally
 * likely. Return a verdict, VERDICT_SCHEDULE if it has yet to be decided whether the connection
 * spills over. `choice` is written for VERDICT_DNAT, and `choice->service` for refusals too.
 */
static inline int choose_backend(struct frontend_key *frontend_key, const struct client *client,
				 struct choice *choice, enum chooser chooser)
{
	struct frontend *frontend = frontend_find(frontend_key);
	__u64 number;

	if (frontend && spill_is_pending(frontend, client->class, chooser))
		return VERDICT_SCHEDULE;
	number = bpf_get_prandom_u32();
	return choose_found(frontend_key, frontend, client, number, choice, chooser);
}

/* The same for a first packet, which may need another step before that. */
static inline int choose_for_packet(struct frontend_key *frontend_key, const struct client *client,
				    struct choice *choice)
{
	struct frontend *frontend = frontend_find(frontend_key);
	__u64 number = bpf_get_prandom_u32();

	if (frontend && schedule_is_pending(frontend, client->class))
		return VERDICT_SCHEDULE;
	return choose_found(frontend_key, frontend, client, number, choice, CHOOSER_PACKET);
}

/* True if no other backend may be needed than the one that was chosen. */
static inline bool choice_is_final(const struct choice *choice)
{
	return choice->watched != WATCHED_MAY_TRY && choice->counts != CHOICE_LIMITED;
}

/*
 * Copy the backend of a slot of `frontend`. False where the entries change at this moment.
 */
static inline bool slot_read(struct frontend_key *frontend_key, struct frontend *frontend,
			     struct backend_key *key, struct choice *choice, struct backend *copy)
{
	struct backend *backend;

	key->service = frontend->service;
	key->generation = frontend->generation;
	backend = backends.lookup(key);
	if (!backend)
		return false;
	*copy = *backend;
	frontend = frontends.lookup(frontend_key);
	return frontend && frontend->service == key->service && key->service == choice->service &&
	       frontend->generation == key->generation;
}

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

/*
 * Choose once more, because the backend that choose_backend() has chosen is not possible.
 * Consecutive values of `number` give other backends, as long as there are more. The choice stays
 * as it is if the service has session affinity or a schedule, or if entries change at this moment.
 */
static inline void choose_again(struct frontend_key *frontend_key, const struct client *client,
				struct choice *choice, __u32 number)
{
	struct frontend *frontend = frontend_find(frontend_key);
	struct backend_key key = {};
	struct backend copy;
	struct policy policy;

	if (!frontend || choice->sticky)
		return;
	policy = *policy_for(frontend, client->class);
	if (!policy.size || policy.table || policy.spills || frontend->schedule)
		return;
	key.slot = policy.first + number % policy.size;
	if (!slot_read(frontend_key, frontend, &key, choice, &copy))
		return;
	choice->backend = copy;
	choice->masquerade = policy.masquerade;
}

/* Count a choice, and remember it for session affinity. */
static inline void choice_made(const struct choice *choice, const struct client *client)
{
	if (choice->backend.counters)
		count_choice(choice->backend.counters);
	if (choice->sticky)
		affinity_note(choice->service, &client->address, &choice->backend);
}

/* Count a refusal for the node, and for the service port that `choice` names. */
static inline void choice_refused(const struct choice *choice, int verdict)
{
	struct refusals *of_service;

	if (verdict != VERDICT_REJECT && verdict != VERDICT_DROP && verdict != VERDICT_FORBIDDEN)
		return;
	of_service = refusals_of(choice->service);
	if (verdict == VERDICT_REJECT && choice->counts == CHOICE_LIMITED)
		COUNT_REFUSAL(of_service, rejected__backends_full);
	else if (verdict == VERDICT_REJECT)
		COUNT_REFUSAL(of_service, rejected__no_endpoints);
	else if (verdict == VERDICT_DROP)
		COUNT_REFUSAL(of_service, dropped__no_endpoints);
	else
		COUNT_REFUSAL(of_service, dropped__source_range);
}
