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
	__u8 hairpin; /* masquerade when it is its own client */
	__u8 zero;
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
