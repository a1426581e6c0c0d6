/*
 * Connections straight to a backend's own address. They are not translated, but a client may use
 * one source port for such a connection and for one through a frontend that chose the same
 * backend. After routing the two are one 5-tuple and their replies could not be told apart, so
 * whichever comes second gets another source port. For that, first packets of direct flows to
 * known endpoints are remembered. A leftover here costs a changed port number and nothing else.
 */

MAP("lru_hash", struct flow, __u64, direct_flows, MAX_DIRECT_FLOWS, 0);

static inline void direct_flow_note(struct flow *flow)
{
	__u64 now;

	if (direct_flows.lookup(flow))
		return;
	now = bpf_ktime_get_coarse_ns();
	direct_flows.update(flow, &now);
	COUNT(direct_flows_noticed);
}

/* Whether `routed`, client to backend, is in use by a direct flow. */
static inline bool direct_flow_exists(const struct flow *routed)
{
	struct flow entering = *routed;

	entering.hook = HOOK_INGRESS;
	return direct_flows.lookup(&entering) != NULL;
}
