/*
 * Session affinity: the backend that a client of a service was given last, kept while it comes again
 * in time. What is remembered is the backend itself and not its slot, for slots change with every
 * change of endpoints; `positions` tells where it stands among those of today.
 */

struct affinity_key {
	__u32 service;
	struct address client;
};

struct affinity {
	struct address backend;
	__be16 port;
	__u16 zero[3];
	__u64 seen; /* ns, CLOCK_MONOTONIC */
};

MAP("lru_hash", struct affinity_key, struct affinity, affinities, MAX_AFFINITIES, 0);

/* Backends of services with affinity: each may stand in two ranges of slots. */
struct position_key {
	__u32 service;
	__u32 generation;
	struct address address;
	__be16 port;
	__u16 zero;
};

struct position {
	__u32 slots[2];
};

MAP("hash", struct position_key, struct position, positions, MAX_BACKENDS, BPF_F_NO_PREALLOC);

static inline bool policy_has(const struct policy *policy, __u32 slot)
{
	return slot >= policy->first && slot - policy->first < policy->size;
}

/* Make `key` the slot that its client was given last, if that is still one of the policy's. */
static inline void affinity_apply(struct backend_key *key, const struct policy *policy,
				  const struct address *client, __u32 seconds)
{
	struct affinity_key who = {.service = key->service, .client = *client};
	struct affinity *last = affinities.lookup(&who);
	struct position_key place = {.service = key->service, .generation = key->generation};
	struct position *position;

	if (!last || (__s64)(bpf_ktime_get_coarse_ns() - last->seen) >= seconds * NS_PER_SECOND)
		return;
	place.address = last->backend;
	place.port = last->port;
	position = positions.lookup(&place);
	if (!position)
		return;
	if (policy_has(policy, position->slots[0]))
		key->slot = position->slots[0];
	else if (policy_has(policy, position->slots[1]))
		key->slot = position->slots[1];
}

static inline void affinity_note(__u32 service, const struct address *client,
				 const struct backend *backend)
{
	struct affinity_key who = {.service = service, .client = *client};
	struct affinity now = {};

	now.backend = backend->address;
	now.port = backend->port;
	now.seen = bpf_ktime_get_coarse_ns();
	affinities.update(&who, &now);
}
