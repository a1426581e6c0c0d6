/*
 * The connection GC: removing connections that are over. The agent proposes flows: it lists those
 * that it has read in the tables, or it has the programs' own queues of closed connections worked
 * off. Here the state of the entries at the moment of the deletion decides.
 */
#pragma once

#include "lib/flow.h"
#include "lib/pair_count.h"
#include "lib/subprograms.h"
#include "lib/wire.h"
#include "maps/closed_flows.h"
#include "maps/connections.h"
#include "maps/half_open.h"
#include "maps/port_filter.h"
#include "maps/settings.h"
#include "maps/untranslated.h"
#include "path/conn/attempts.h"
#include "path/conn/observe.h"

enum {
	GC_FLOWS = 8,	      /* in one run: meanwhile the CPU does nothing else */
	GC_LISTED_FLOWS = 64, /* in one request */
};

/* Where flows come from. */
enum gc_source {
	GC_LISTED,    /* they follow the header */
	GC_CLOSED,    /* closed_flows */
	GC_TIME_WAIT, /* time_wait_flows */
};

/*
 * What the agent sends as a test packet: this header, then the listed flows. The agent has the
 * program run several times on one packet; each run goes on where the one before has stopped.
 */
struct gc_request {
	__u8 ethernet[ETH_HLEN];
	__u8 flows;
	__u8 force;	  /* remove them in any state, and their masquerades */
	__u8 crowded;	  /* remove closed and half-open connections early */
	__u8 early_ports; /* do not wait until peers have forgotten a port chosen here */
	__u8 note;	  /* remove nothing, but set the bytes of their destination ports */
	__u8 source;	  /* of enum gc_source */
	/* Written by the program. */
	__u8 next;     /* the first listed flow that is not handled yet */
	__u8 taken;    /* how many flows the last run has taken from a queue */
	__u16 removed; /* how many connections all runs have removed */
};

DESCRIBE(gc_request);

/* How long a closed connection is kept after its last packet, in ns. */
static inline __s64 closed_lifetime(const struct settings *settings, const struct flow *flow,
				    const struct connection *connection,
				    const struct gc_request *request)
{
	/* Not at once, even if crowded: the last acknowledgement may still come. */
	__u32 seconds = request->crowded ? LINGER_SECONDS : settings->tcp_closed_seconds;

	if (seconds < TIME_WAIT_SECONDS && !request->crowded && !request->early_ports &&
	    connection_in_time_wait(flow, connection))
		seconds = TIME_WAIT_SECONDS;
	return seconds * NS_PER_SECOND;
}

/* The same of any connection. */
static inline __s64 connection_lifetime(const struct settings *settings, const struct flow *flow,
					const struct connection *connection,
					const struct gc_request *request)
{
	__u32 unanswered = request->crowded ? UNANSWERED_SECONDS : settings->half_open_seconds;
	bool tcp = flow->protocol == PROTO_TCP;
	__u32 seconds = flow->protocol == PROTO_SCTP ? settings->sctp_seconds :
						       settings->udp_seconds;

	if (connection_closed(connection))
		return closed_lifetime(settings, flow, connection, request);
	if (tcp && connection->reset)
		seconds = settings->tcp_closed_seconds;
	else if (!connection->established)
		seconds = tcp || seconds > unanswered ? unanswered : seconds;
	else if (tcp && (connection->fin_sent || connection->fin_received))
		seconds = settings->tcp_half_closed_seconds;
	else if (tcp)
		seconds = settings->tcp_established_seconds;
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

/* One flow of a request, as the subprograms are handed it. */
struct collecting {
	struct flow flow;
	struct gc_request request;
	__u8 again; /* with this flow, and not with the next of a queue */
	__u8 zeros[3];
};

enum collect_argument_size {
	ARGUMENT_COLLECT = sizeof(struct collecting),
	ARGUMENT_COLLECT_CLOSED = sizeof(struct collecting),
};

/* Remove one flow, or note it. It is a subprogram, or the verifier follows it for each flow. */
static int (*collect)(struct collecting *collecting) = (void *)SUBPROGRAM_COLLECT;

/* Return how many were removed: 1 or 0. */
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

/* True if a flow of a queue has waited for so long, and for the acknowledgement of the last FIN. */
static inline bool closed_flow_due(const struct flow *flow, __u64 now, __u32 seconds)
{
	/* Both times are cut off to a unit, so up to one has not passed. */
	__u16 units = closed_time(now) - flow->zero;

	return units && (__u64)(units - 1) << CLOSED_TIME_SHIFT >= (seconds + 1) * NS_PER_SECOND;
}

/* Take the first flow from a queue, if it is due. False if there is none, or it is not due. */
static inline bool closed_flow_take(const struct settings *settings,
				    const struct gc_request *request, struct flow *flow)
{
	__u32 seconds = request->crowded ? LINGER_SECONDS : settings->tcp_closed_seconds;
	long error;

	if (request->source == GC_CLOSED) {
		error = (long)closed_flows.peek(flow);
	} else {
		error = (long)time_wait_flows.peek(flow);
		if (!request->crowded && !request->early_ports && seconds < TIME_WAIT_SECONDS)
			seconds = TIME_WAIT_SECONDS;
	}
	/* The time is read after the flow: a flow must not be of the future. */
	if (error || !closed_flow_due(flow, bpf_ktime_get_coarse_ns(), seconds))
		return false;
	/* Nobody else takes flows. If somebody did, this might be another one, and no harm done. */
	error = request->source == GC_CLOSED ? (long)closed_flows.pop(flow) :
					       (long)time_wait_flows.pop(flow);
	return !error;
}

/*
 * Remove the pair of `flow`, which was closed, if it is over. True if it is removed and there is a
 * pair around the wire: that one's key is then in `flow`. (Nearly all closed connections are in
 * `connections`. From the other table the kernel evicts.)
 */
static inline bool closed_pair_remove(const struct settings *settings,
				      const struct gc_request *request, struct flow *flow,
				      __u16 closed, int *removed)
{
	struct connection *connection = connections.lookup(flow), *other, *forward;
	struct flow partner, wire;
	bool masqueraded = false;
	__s64 lifetime;
	__u64 now;

	/* It may have been opened anew: then it is noted again when it is closed. */
	if (!connection || !connection_closed(connection))
		return false;
	flow_reverse(&partner, &connection->after, other_hook(flow->hook));
	other = connections.lookup(&partner);
	if (!other || !flow_is_reverse(flow, &other->after))
		return false;
	lifetime = closed_lifetime(settings, flow, connection, request);
	now = bpf_ktime_get_coarse_ns();
	if (connection_idle(connection, now) < lifetime || connection_idle(other, now) < lifetime) {
		if (request->source == GC_CLOSED && connection_in_time_wait(flow, connection)) {
			flow->zero = closed;
			time_wait_flows.push(flow, 0);
		}
		return false;
	}
	/* Before the entries go: the kernel may use their memory again at once. */
	forward = connection->reply ? other : connection;
	if (forward->masquerade && !connection_around_wire(flow, connection)) {
		wire = forward->after;
		wire.hook = HOOK_EGRESS;
		masqueraded = true;
	}
	if (connection->observed)
		observe_end(flow, connection, false);
	pair_count_release(half_open_get(), connection->held);
	pair_count_release(untranslated_get(), connection->outside >> 1);
	load_leave(other);
	load_leave(connection);
	connections.delete(&partner);
	connections.delete(flow);
	++*removed;
	if (masqueraded)
		*flow = wire;
	return masqueraded;
}

/*
 * Take the first flow of a queue and remove its pair, if that is over. If the pair around the wire
 * is to be removed next, `again` is set: it is in no queue before it is in TIME_WAIT.
 */
static int (*collect_closed)(struct collecting *collecting) = (void *)SUBPROGRAM_COLLECT_CLOSED;

/* Return how many pairs were removed: 1 or 0; -1 if no flow is due. */
int subprogram_collect_closed(struct collecting *collecting)
{
	struct settings *settings = settings_get();
	struct gc_request request;
	int removed = 0;
	struct flow flow;
	__u16 closed;

	if (!collecting || !settings)
		return -1;
	request = collecting->request;
	flow = collecting->flow;
	if (!collecting->again && !closed_flow_take(settings, &request, &flow))
		return -1;
	closed = flow.zero;
	flow.zero = 0;
	collecting->again = closed_pair_remove(settings, &request, &flow, closed, &removed);
	flow.zero = closed;
	collecting->flow = flow;
	return removed;
}

/* Handle the listed flows that come next. Return how many connections were removed. */
static inline int gc_listed(struct __sk_buff *skb, struct collecting *collecting)
{
	struct gc_request *request = &collecting->request;
	int removed = 0;

#pragma clang loop unroll(disable)
	for (int i = 0; i < GC_FLOWS; i++) {
		struct flow *flow = &collecting->flow;
		__u32 at = request->next + i;

		if (at >= request->flows ||
		    bpf_skb_load_bytes(skb, sizeof(*request) + at * sizeof(*flow), flow,
				       sizeof(*flow)))
			break;
		removed += collect(collecting);
	}
	request->next += GC_FLOWS;
	return removed;
}

/* Handle the flows of a queue that are due, likewise. */
static inline int gc_queued(struct collecting *collecting)
{
	struct gc_request *request = &collecting->request;
	int removed = 0, taken;

#pragma clang loop unroll(disable)
	for (taken = 0; taken < GC_FLOWS; taken++) {
		int pairs = collect_closed(collecting);

		if (pairs < 0)
			break;
		removed += pairs;
		if (collecting->again)
			removed += collect_closed(collecting);
		collecting->again = 0;
	}
	request->taken = taken;
	return removed;
}

/* Return how many connections this run has removed. */
static inline int gc_flows(struct __sk_buff *skb)
{
	struct collecting collecting = {};
	struct gc_request *request = &collecting.request;
	int removed;

	if (bpf_skb_load_bytes(skb, 0, request, sizeof(*request)))
		return 0;
	removed = request->source == GC_LISTED ? gc_listed(skb, &collecting) :
						 gc_queued(&collecting);
	request->removed += removed;
	bpf_skb_store_bytes(skb, 0, request, sizeof(*request), 0);
	return removed;
}
