/*
 * Backends: where packets go. Slots of one generation are written once and never changed, so a
 * frontend row that names a generation names a complete set.
 */

struct backend_key {
	__u32 service;
	__u32 generation;
	__u32 slot;
};

struct backend {
	struct address address;
	__be16 port;
	__u16 zero;
	__u32 counters; /* index into backend_counters */
};

MAP("hash", struct backend_key, struct backend, backends, MAX_BACKEND_SLOTS, BPF_F_NO_PREALLOC);

/* Everything that is a backend of any service port, and of how many. */
struct endpoint_key {
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 zero;
};

MAP("hash", struct endpoint_key, __u32, endpoints, MAX_BACKENDS, BPF_F_NO_PREALLOC);

static inline bool endpoint_known(const struct address *address, __be16 port, __u8 protocol)
{
	struct endpoint_key key = {.address = *address, .port = port, .protocol = protocol};

	return endpoints.lookup(&key) != NULL;
}

#define VERDICT_NONE 0 /* no frontend: none of our business */
#define VERDICT_DNAT 1
#define VERDICT_REJECT 2
#define VERDICT_DROP 3

struct choice {
	struct backend backend;
	__u32 service;
	bool masquerade;
};

/*
 * Pick a backend of `frontend_key` for a client of the given class, uniformly at random.
 *
 * The agent may replace rows meanwhile, and the kernel may reuse a removed row's memory at once. So
 * the frontend is read again after the backend was copied: only if it still names the same
 * generation was everything between the two reads in place.
 */
static inline int choose_backend(struct frontend_key *frontend_key, int client,
				 struct choice *choice)
{
	struct frontend *frontend = frontend_find(frontend_key);

#pragma clang loop unroll(disable)
	for (int attempt = 0; attempt < 4; attempt++) {
		struct backend_key key = {};
		struct policy policy;
		struct backend *backend;

		if (!frontend)
			return VERDICT_NONE;
		key.service = frontend->service;
		key.generation = frontend->generation;
		policy_for(&policy, frontend, client);
		if (policy.size) {
			key.slot = policy.first +
				   (__u32)(((__u64)bpf_get_prandom_u32() * policy.size) >> 32);
			backend = backends.lookup(&key);
			if (backend)
				choice->backend = *backend;
		} else {
			backend = NULL;
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
		return VERDICT_DNAT;
	}
	return VERDICT_DROP;
}
