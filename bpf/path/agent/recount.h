/*
 * Correcting the loads of backends. The agent reads the tables and proposes differences. They are
 * added here, so that no connection is lost that packets count meanwhile.
 */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/backend_loads.h"
#include "maps/connections.h"

enum { RECOUNT_RECORDS = 8 }; /* in one request */

/* What the agent sends as a test packet: this header, then records. */
struct recount_header {
	__u8 ethernet[ETH_HLEN];
	__u8 records;
	__u8 flows; /* the records are flows that have to count from now on; else differences */
};

DESCRIBE(recount_header);

struct load_difference {
	__u32 counters;
	__s32 active;
	__s32 inactive;
};

DESCRIBE(load_difference);

/*
 * Count a connection that began before its Service was counted. False if the connection is counted
 * already, or if its entry does not lead a client's packets to a backend.
 */
static inline bool connection_count(struct flow *flow)
{
	struct connection *connection = connection_find(flow);

	if (!connection || flow->hook != HOOK_INGRESS || connection->reply ||
	    !connection->service || !connection->counters ||
	    counted_set(connection, COUNTED) & COUNTED)
		return false;
	load_add(connection->counters, 1, 0);
	load_follow(flow->protocol, connection);
	return true;
}

static inline int recount_request(struct __sk_buff *skb)
{
	struct recount_header header;
	int counted = 0;

	if (bpf_skb_load_bytes(skb, 0, &header, sizeof(header)))
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < RECOUNT_RECORDS; i++) {
		if (i >= header.records)
			break;
		if (header.flows) {
			struct flow flow;

			if (bpf_skb_load_bytes(skb, sizeof(header) + i * sizeof(flow), &flow,
					       sizeof(flow)))
				break;
			counted += connection_count(&flow);
		} else {
			struct load_difference difference;

			if (bpf_skb_load_bytes(skb, sizeof(header) + i * sizeof(difference),
					       &difference, sizeof(difference)))
				break;
			load_add(difference.counters, difference.active, difference.inactive);
			counted++;
		}
	}
	return counted;
}
