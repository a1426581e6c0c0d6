/*
 * Closed connections, in the order in which they were closed. So the agent removes them without
 * reading the table of connections: only the first of a queue may be due (path/agent/gc.h). An
 * entry is a key of `connections`, of either direction of a pair. Its `zero` holds the time when
 * the connection was closed.
 *
 * An entry only proposes. When it is due, the pair may be gone, or another connection may have its
 * key; then the entry of the queue is dropped. A pair that is not in a queue, because the queue was
 * full or because packets came late, is found by the agent's sweep of the table.
 */
#pragma once

#include "lib/flow.h"
#include "lib/map.h"

/* For the time that every closed connection is kept. */
QUEUE(struct flow, closed_flows, MAX_CLOSED_FLOWS);
/* For the rest of the time that a backend remembers a port that was chosen here. */
QUEUE(struct flow, time_wait_flows, MAX_CLOSED_FLOWS);

#define CLOSED_TIME_SHIFT 28 /* units of 0.27 s, which begin again after 4.9 hours */

static inline __u16 closed_time(__u64 ns)
{
	return ns >> CLOSED_TIME_SHIFT;
}

/* Put a flow that was closed at `ns` behind the others. Nothing happens if the queue is full. */
static inline void closed_flow_put(struct flow *flow, __u64 ns)
{
	flow->zero = closed_time(ns);
	closed_flows.push(flow, 0);
	flow->zero = 0;
}
