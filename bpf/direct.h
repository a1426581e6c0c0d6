/*
 * Connections straight to a backend's own address. They are not translated, but a client may use
 * one source port for such a connection and for one through a frontend that chose the same
 * backend. After routing the two are one 5-tuple and their replies could not be told apart, so
 * whichever comes second gets another source port. For that, first packets of direct flows to
 * known endpoints are remembered, as fingerprints in a table where the latest of a place stays.
 * A wrong yes, or a leftover, costs a changed port number and nothing else.
 */

MAP("array", __u32, __u32, direct_flows, MAX_DIRECT_FLOWS, 0);

static inline __u64 flow_hash(const struct flow *flow)
{
	const __u64 *words = (const __u64 *)flow;
	__u64 hash = 0x9e3779b97f4a7c15ULL;

#pragma unroll
	for (int i = 0; i < 4; i++)
		hash = (hash ^ words[i]) * 0xff51afd7ed558ccdULL;
	hash ^= ((__u64)flow->source_port << 32 | (__u64)flow->destination_port << 16 |
		 flow->protocol);
	hash *= 0xc4ceb9fe1a85ec53ULL;
	return hash ^ hash >> 33;
}

/* Where a flow from client to backend has its place, and by what it is known there. */
static inline __u32 *fingerprint_place(const struct flow *flow, __u32 *fingerprint)
{
	__u64 hash = flow_hash(flow);
	__u32 index = (__u32)hash % MAX_DIRECT_FLOWS;

	*fingerprint = (__u32)(hash >> 32) | 1;
	return direct_flows.lookup(&index);
}

/* True when it was not known to be in use. */
static inline bool direct_flow_note(const struct flow *flow)
{
	__u32 fingerprint;
	__u32 *place = fingerprint_place(flow, &fingerprint);

	if (!place || *place == fingerprint)
		return false;
	*place = fingerprint;
	COUNT(direct_flows_noticed);
	return true;
}

/* Whether `routed`, client to backend, is in use by a direct flow. */
static inline bool direct_flow_exists(const struct flow *routed)
{
	__u32 fingerprint;
	__u32 *place = fingerprint_place(routed, &fingerprint);

	return place && *place == fingerprint;
}
