/* Choosing a backend for a first packet or for the call of a socket, or refusing it. */
#pragma once

#include "lib/address.h"
#include "lib/wire.h"
#include "maps/affinities.h"
#include "maps/backend_counters.h"
#include "maps/backends.h"
#include "maps/counters.h"
#include "maps/frontends.h"
#include "maps/node_addresses.h"
#include "maps/positions.h"
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
