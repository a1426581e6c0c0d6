/*
 * The connection GC: removing connections that are over. The agent reads the tables and proposes
 * flows. Here the state of the entries at the moment of the deletion decides.
 */
#pragma once

#include "lib/flow.h"
#include "lib/subprograms.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/port_filter.h"
#include "maps/settings.h"
#include "path/conn/attempts.h"
#include "path/conn/observe.h"

enum { GC_FLOWS = 16 }; /* in one request */

/* What the agent sends as a test packet: this header, then up to GC_FLOWS flows. */
struct gc_request {
	__u8 ethernet[ETH_HLEN];
	__u8 flows;
	__u8 force;	  /* remove them in any state, and their masquerades */
	__u8 crowded;	  /* remove closed and half-open connections early */
	__u8 early_ports; /* do not wait until peers have forgotten a port chosen here */
	__u8 note;	  /* remove nothing, but set the bytes of their destination ports */
};

DESCRIBE(gc_request);

static inline __s64 connection_lifetime(const struct settings *settings, const struct flow *flow,
					const struct connection *connection,
					const struct gc_request *request)
{
	bool crowded = request->crowded;
	__u8 protocol = flow->protocol;
	__u32 seconds = protocol == PROTO_SCTP ? settings->sctp_seconds : settings->udp_seconds;

	/* Not at once, even if crowded: the last acknowledgement may still come. */
	if (protocol == PROTO_TCP && connection_closed(connection))
		seconds = crowded ? LINGER_SECONDS : settings->tcp_closed_seconds;
	else if (protocol == PROTO_TCP && connection->reset)
		seconds = settings->tcp_closed_seconds;
	else if (!connection->established)
		seconds = crowded ? UNANSWERED_SECONDS : settings->half_open_seconds;
	else if (protocol == PROTO_TCP && (connection->fin_sent || connection->fin_received))
		seconds = settings->tcp_half_closed_seconds;
	else if (protocol == PROTO_TCP)
		seconds = settings->tcp_established_seconds;
	if (protocol == PROTO_TCP && connection_in_time_wait(flow, connection) && !crowded &&
	    !request->early_ports && seconds < TIME_WAIT_SECONDS)
		seconds = TIME_WAIT_SECONDS;
	return seconds * NS_PER_SECOND;
}

static inline bool connection_over(const struct settings *settings, struct flow *flow,
				   struct connection *connection, __u64 now,
				   const struct gc_request *request)
{
	__s64 lifetime = connection_lifetime(settings, flow, connection, request);
	struct connection *other;
	struct flow partner;

	if (connection_idle(connection, now) < lifetime)
		return false;
	other = partner_find(&partner, flow, connection);
	return !other || connection_idle(other, now) >= lifetime;
}

/* One flow of a request, as the subprogram is handed it. */
struct collecting {
	struct flow flow;
	struct gc_request request;
};

enum collect_argument_size {
	ARGUMENT_COLLECT = sizeof(struct collecting),
};

/* Remove one flow, or note it. It is a subprogram, or the verifier follows it for each flow. */
static int (*collect)(struct collecting *collecting) = (void *)SUBPROGRAM_COLLECT;

/* Returns how many were removed: 1 or 0. */
int subprogram_collect(struct collecting *collecting)
{
	struct settings *settings = settings_get();
	struct connection *connection;
	struct gc_request request;
	struct flow flow;

	if (!collecting || !settings)
		return 0;
	/* Linux 6.1 takes a key of a map from here, and not from its caller's memory. */
	flow = collecting->flow;
	request = collecting->request;
	if (request.note) {
		port_filter_note(&flow, false, false);
		return 0;
	}
	connection = connection_find(&flow);
	if (!connection)
		return 0;
	if (!request.force &&
	    !connection_over(settings, &flow, connection, bpf_ktime_get_coarse_ns(), &request))
		return 0;
	if (request.force && connection->reply) {
		struct flow routed;

		flow_reverse(&routed, &flow, HOOK_EGRESS);
		masquerade_remove(&routed);
	}
	if (!request.force)
		attempt_expire(&flow, connection);
	if (connection->observed)
		observe_end(&flow, connection, request.force);
	connection_remove(&flow, connection);
	return 1;
}

static inline int gc_flows(struct __sk_buff *skb)
{
	struct collecting collecting = {};
	int removed = 0;

	if (bpf_skb_load_bytes(skb, 0, &collecting.request, sizeof(collecting.request)))
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < GC_FLOWS; i++) {
		struct flow *flow = &collecting.flow;

		if (i >= collecting.request.flows ||
		    bpf_skb_load_bytes(skb, sizeof(collecting.request) + i * sizeof(*flow), flow,
				       sizeof(*flow)))
			break;
		removed += collect(&collecting);
	}
	return removed;
}
