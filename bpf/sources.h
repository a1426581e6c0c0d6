/* Who may come: the ranges of clients that restricted frontends of a service accept. */

struct source_range {
	__u32 prefix; /* bits that count, of all that follows */
	__u32 service;
	struct address network;
};

MAP("lpm_trie", struct source_range, __u32, source_ranges, MAX_SOURCE_RANGES, BPF_F_NO_PREALLOC);

static inline bool source_allowed(__u32 service, const struct address *source)
{
	struct source_range key = {.prefix = 160, .service = service, .network = *source};

	return source_ranges.lookup(&key) != NULL;
}

/* Networks that cluster IPs are taken from: nobody is there but Services. */
struct service_network {
	__u32 prefix;
	struct address network;
};

MAP("lpm_trie", struct service_network, __u32, service_networks, 64, BPF_F_NO_PREALLOC);

static inline bool service_network_has(const struct address *address)
{
	struct service_network key = {.prefix = 128, .network = *address};

	return service_networks.lookup(&key) != NULL;
}
