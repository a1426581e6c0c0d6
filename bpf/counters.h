/*
 * Events worth a number, one field each; a double underscore divides the metric from its reason.
 * Per CPU, so a plain increment is enough.
 */

struct counters {
	__u64 rejected__no_endpoints;
	__u64 dropped__no_endpoints;
	__u64 dropped__source_range;
	__u64 dropped__masquerade_ports_exhausted;
	__u64 dropped__no_masquerade_address;
	__u64 dropped__source_ports_exhausted;
	__u64 dropped__connections_full;
	__u64 dropped__evicted;
	__u64 dropped__rewrite_failed;
	__u64 dropped__step_missing;
	__u64 dropped__reject_failed;
	__u64 source_ports_changed;
	__u64 connections_reopened;
	__u64 direct_flows_noticed;
	__u64 icmp_errors_translated;
	__u64 fast_forwarded; /* packets that took the fast path */
	__u64 edge_forwarded;
	__u64 edge_passed__turn;
	__u64 edge_passed__not_now;
	__u64 edge_passed__not_by_uplink;
};

MAP("percpu_array", __u32, struct counters, counters, 1, 0);

/*
 * Traffic of one backend; `connections` counts choices, by packets and by sockets. Row 0 is nobody's.
 */
struct backend_counters {
	__u64 connections;
	__u64 packets;
	__u64 bytes;
	__u64 reply_packets;
	__u64 reply_bytes;
};

MAP("percpu_array", __u32, struct backend_counters, backend_counters, (MAX_BACKENDS + 1), 0);

static inline struct counters *counters_get(void)
{
	__u32 only = 0;

	return counters.lookup(&only);
}

#define COUNT(field)                                       \
	do {                                               \
		struct counters *counted = counters_get(); \
		if (counted)                               \
			counted->field++;                  \
	} while (0)

static inline void count_choice(__u32 backend)
{
	struct backend_counters *row = backend_counters.lookup(&backend);

	if (row)
		row->connections++;
}

static inline void count_packet(__u32 backend, bool reply, __u32 bytes)
{
	struct backend_counters *row = backend_counters.lookup(&backend);

	if (!row)
		return;
	if (reply) {
		row->reply_packets++;
		row->reply_bytes += bytes;
	} else {
		row->packets++;
		row->bytes += bytes;
	}
}
