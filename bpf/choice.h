/* The decision: what becomes of the first packet, or the first call, that names a frontend. */

#define VERDICT_NONE 0 /* no frontend: none of our business */
#define VERDICT_DNAT 1
#define VERDICT_REJECT 2
#define VERDICT_DROP 3
#define VERDICT_FORBIDDEN 4 /* dropped, for the client is not in the source ranges */

struct client {
	struct address address;
	__u32 class;
};

struct choice {
	struct backend backend;
	__u32 service;
	__u8 masquerade;
	__u8 sticky; /* to be remembered for this client */
	__u8 zero[2];
};

/* What is left: addresses that are nobody's but Services', on ports that none of them has. */
static inline int guard(const struct address *address)
{
	struct frontend_key key = {.address = *address};

	if (frontends.lookup(&key))
		return VERDICT_REJECT;
	return service_network_has(address) ? VERDICT_DROP : VERDICT_NONE;
}

/*
 * Pick a backend of `frontend_key` for a client: the one it was given last, where the service has
 * affinity, else uniformly at random.
 *
 * The agent may replace rows meanwhile, and the kernel may reuse a removed row's memory at once. So
 * the frontend is read again after the backend was copied: only if it still names the same
 * generation was everything between the two reads in place.
 */
static inline int choose_backend(struct frontend_key *frontend_key, const struct client *client,
				 struct choice *choice)
{
	struct frontend *frontend = frontend_find(frontend_key);

#pragma clang loop unroll(disable)
	for (int attempt = 0; attempt < 4; attempt++) {
		struct backend_key key = {};
		struct backend *backend = NULL;
		struct policy policy;
		__u32 affinity;

		if (!frontend)
			return guard(&frontend_key->address);
		key.service = frontend->service;
		key.generation = frontend->generation;
		affinity = frontend->affinity_seconds;
		policy_for(&policy, frontend, client->class);
		if (frontend->restricted && !source_allowed(key.service, &client->address))
			return VERDICT_FORBIDDEN;
		if (policy.size) {
			key.slot = policy.first +
				   (__u32)(((__u64)bpf_get_prandom_u32() * policy.size) >> 32);
			if (affinity)
				affinity_apply(&key, &policy, &client->address, affinity);
			backend = backends.lookup(&key);
			if (backend)
				choice->backend = *backend;
		}
		frontend = frontends.lookup(frontend_key);
		if (!frontend || frontend->service != key.service ||
		    frontend->generation != key.generation)
			continue;
		if (!policy.size)
			return policy.reject ? VERDICT_REJECT : VERDICT_DROP;
		if (!backend)
			continue;
		choice->service = key.service;
		choice->masquerade = policy.masquerade;
		choice->sticky = affinity != 0;
		return VERDICT_DNAT;
	}
	return VERDICT_DROP;
}

/* Note what was chosen. */
static inline void choice_made(const struct choice *choice, const struct client *client)
{
	if (choice->backend.counters)
		count_choice(choice->backend.counters);
	if (choice->sticky)
		affinity_note(choice->service, &client->address, &choice->backend);
}

static inline void count_refusal(int verdict)
{
	if (verdict == VERDICT_REJECT)
		COUNT(rejected__no_endpoints);
	else if (verdict == VERDICT_DROP)
		COUNT(dropped__no_endpoints);
	else if (verdict == VERDICT_FORBIDDEN)
		COUNT(dropped__source_range);
}
