/*
 * Flows that netfilter translates on this node, as they look after its translation: client or node
 * to backend. A connection of ours must not get the same 5-tuple: the backend would take one for
 * the other. The agent writes those that there are when this program takes over, kube-proxy's
 * connections, from netfilter's own table. Later ones are noted when they leave, if their port is
 * one that may be chosen here. The agent removes them when netfilter has forgotten them.
 */
#pragma once

#include "lib/flow.h"
#include "lib/map.h"

MAP("hash", struct flow, __u32, netfilter_flows, MAX_DIRECT_FLOWS, BPF_F_NO_PREALLOC);

/* True if netfilter has a flow of this 5-tuple; `flow` belongs to no hook. */
static inline bool netfilter_flow_exists(struct flow *flow)
{
	return netfilter_flows.lookup(flow) != NULL;
}

/* Remember a flow that leaves. If there is no room, a connection of ours may get its port. */
static inline void netfilter_flow_note(const struct flow *leaving)
{
	struct flow flow = *leaving;
	__u32 nothing = 0;

	flow.hook = 0;
	if (!netfilter_flow_exists(&flow))
		netfilter_flows.insert(&flow, &nothing);
}
