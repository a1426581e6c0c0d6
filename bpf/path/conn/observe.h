/*
 * What is told about the packet at hand (maps/events.h). All of it is on ways that few packets take.
 * Who reads no event pays for one branch.
 */
#pragma once

#include "lib/flow.h"
#include "lib/verifier.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/events.h"
#include "maps/settings.h"
#include "path/packet.h"
#include "path/schedule/backend_select.h"

static inline bool in_sample(__u32 mask)
{
	return !(bpf_get_prandom_u32() & mask);
}

/*
 * Decide whether the connection that a first packet is about to open is observed. The coarse clock
 * hardly ever ticks until STEP_OPEN dates the connection by it.
 */
static inline void observe_opening(struct packet *packet)
{
	struct observed *wanted = observed_if(EVENT_MADE);
	struct first *first = &packet->first;

	first->observed = 0;
	AS_IN_MEMORY();
	if (wanted && first->choice.service && in_sample(wanted->connections))
		first->observed = 1 + ((bpf_ktime_get_ns() - bpf_ktime_get_coarse_ns()) >>
				       EVENT_TIME_UNIT_SHIFT);
	AS_IN_MEMORY();
}

/* Tell that a connection has got a backend. */
static inline void observe_made(const struct packet *packet)
{
	const struct first *first = &packet->first;
	struct observed *wanted;
	struct event *event;

	if (!first->observed)
		return;
	wanted = observed_if(EVENT_MADE);
	if (!wanted)
		return;
	event = event_begin(EVENT_MADE, wanted->connections);
	if (!event)
		return;
	event->client = packet->flow.source;
	event->client_port = packet->flow.source_port;
	event->frontend = packet->flow.destination;
	event->frontend_port = packet->flow.destination_port;
	event->backend = first->choice.backend.address;
	event->backend_port = first->choice.backend.port;
	event->protocol = packet->flow.protocol;
	event->service = first->choice.service;
	event->counters = first->choice.backend.counters;
	event->reason = EVENT_REASON_NONE;
	event->path = EVENT_BY_TC + not_zero(first->ends.client);
	event->masquerade = first->choice.masquerade;
	event_emit(event);
}

/* Tell that a first packet is refused or dropped. */
static inline void observe_failure(const struct packet *packet, __u8 kind, __u8 reason)
{
	struct observed *wanted = observed_if(kind);
	struct event *event;

	if (!wanted || !in_sample(wanted->failures))
		return;
	event = event_begin(kind, wanted->failures);
	if (!event)
		return;
	event->client = packet->flow.source;
	event->client_port = packet->flow.source_port;
	event->frontend = packet->flow.destination;
	event->frontend_port = packet->flow.destination_port;
	event_address_clear(&event->backend);
	event->backend_port = 0;
	event->protocol = packet->flow.protocol;
	event->service = packet->first.choice.service;
	event->counters = 0;
	event->reason = reason;
	event->path = EVENT_BY_TC;
	event->masquerade = 0;
	event_emit(event);
}

#define REASON_OF(verdict, reason) ((__u64)(reason) << 8 * (verdict))

/* The reason of a verdict; EVENT_REASON_NONE for one that refuses nothing. Without a branch. */
static inline __u8 refusal_reason(const struct choice *choice, int verdict)
{
	__u64 reasons = REASON_OF(VERDICT_REJECT, EVENT_REASON_NO_ENDPOINTS) |
			REASON_OF(VERDICT_DROP, EVENT_REASON_NO_ENDPOINTS) |
			REASON_OF(VERDICT_FORBIDDEN, EVENT_REASON_SOURCE_RANGE);
	__u64 full = EVENT_REASON_BACKENDS_FULL - EVENT_REASON_NO_ENDPOINTS;

	reasons += (full * (choice->counts >> 1)) << 8 * VERDICT_REJECT;
	return reasons >> 8 * (verdict & 7);
}

/* What a verdict that refuses something is. Without a branch, too. */
static inline __u8 refusal_kind(int verdict)
{
	return EVENT_REFUSED + not_zero(verdict ^ VERDICT_REJECT);
}

/*
 * Tell that a first packet is refused or dropped by the verdict on it, if it is. (The verdict is in
 * memory: the verifier would follow each one.)
 */
static inline void observe_refusal(const struct packet *packet)
{
	__u8 verdict = packet->first.verdict;
	__u8 reason = refusal_reason(&packet->first.choice, verdict);

	if (reason)
		observe_failure(packet, refusal_kind(verdict), reason);
}

/* Microseconds from the creation of an observed connection until `now`. */
static inline __u64 us_since(const struct connection *connection, __u64 now)
{
	__u64 begun =
		connection->created + ((__u64)(connection->observed - 1) << EVENT_TIME_UNIT_SHIFT);

	return now > begun ? (now - begun) / 1000 : 0;
}

/*
 * Return an event with what an entry of a client's or a backend's packets says, to be completed and
 * given to event_emit(). NULL if the agent does not ask for this kind, or if there is no room.
 */
static inline struct event *event_of_entry(const struct flow *flow,
					   const struct connection *connection, __u8 kind)
{
	struct observed *wanted = observed_if(kind);
	struct event *event;

	if (!wanted)
		return NULL;
	event = event_begin(kind, wanted->connections);
	if (!event)
		return NULL;
	if (connection->reply) {
		event->client = connection->after.destination;
		event->client_port = connection->after.destination_port;
		event->frontend = connection->after.source;
		event->frontend_port = connection->after.source_port;
		event->backend = flow->source;
		event->backend_port = flow->source_port;
	} else {
		event->client = flow->source;
		event->client_port = flow->source_port;
		event->frontend = flow->destination;
		event->frontend_port = flow->destination_port;
		event->backend = connection->after.destination;
		event->backend_port = connection->after.destination_port;
	}
	event->protocol = flow->protocol;
	event->service = connection->service;
	event->counters = connection->counters;
	event->path = EVENT_BY_TC + not_zero(connection->shortcut);
	event->masquerade = connection->masquerade;
	return event;
}

/* Tell what an entry of a client's or a backend's packets says, and the time since its creation. */
static inline void observe_entry(const struct flow *flow, const struct connection *connection,
				 enum event_kind kind, __u8 reason)
{
	struct event *event = event_of_entry(flow, connection, kind);

	if (!event)
		return;
	event->took_us = us_since(connection, event->time);
	event->reason = reason;
	event_emit(event);
}

static inline __u8 end_reason(const struct flow *flow, const struct connection *connection)
{
	if (flow->protocol == PROTO_TCP && connection->reset & RESET_CERTAIN)
		return connection->reset & RESET_BY_CLIENT ? EVENT_REASON_CLIENT_RESET :
							     EVENT_REASON_BACKEND_RESET;
	if (flow->protocol == PROTO_TCP && connection_closed(connection))
		return EVENT_REASON_CLOSED;
	return connection->established ? EVENT_REASON_IDLE : EVENT_REASON_UNANSWERED;
}

/*
 * Tell that an observed connection has ended, when its entries are about to be removed. Its time is
 * that until its last packet: to a tick of the coarse clock if that packet has closed it, else to
 * about a second. `forced`: it is removed in whichever state.
 */
static inline void observe_end(const struct flow *flow, const struct connection *connection,
			       bool forced)
{
	struct event *event = event_of_entry(flow, connection, EVENT_ENDED);

	if (!event)
		return;
	event->took_us = us_since(connection, connection->seen);
	event->reason = forced ? EVENT_REASON_REMOVED : end_reason(flow, connection);
	event_emit(event);
}

/* Tell that the first packet of a masqueraded connection cannot leave. */
static inline void observe_unmasqueraded(const struct flow *flow,
					 const struct connection *connection)
{
	struct observed *wanted = observed_if(EVENT_DROPPED);
	struct event *event;

	if (!wanted || !in_sample(wanted->failures))
		return;
	event = event_begin(EVENT_DROPPED, wanted->failures);
	if (!event)
		return;
	event->client = flow->source;
	event->client_port = flow->source_port;
	event_address_clear(&event->frontend);
	event->frontend_port = 0;
	event->backend = flow->destination;
	event->backend_port = flow->destination_port;
	event->protocol = flow->protocol;
	event->service = connection->service;
	event->counters = 0;
	event->reason = EVENT_REASON_MASQUERADE;
	event->path = EVENT_BY_TC;
	event->masquerade = 1;
	event_emit(event);
}

/*
 * Tell what a packet of an observed connection that is not established says: its backend answers,
 * or refuses it, or its client tries again.
 */
static inline void observe_progress(const struct packet *packet,
				    const struct connection *connection)
{
	__u8 tcp_flags = packet->flow.protocol == PROTO_TCP ? packet->tcp_flags : 0;

	if (connection->reset)
		return;
	if (connection->reply && connection->replied)
		return;
	if (connection->reply && tcp_flags & TCP_RST)
		observe_entry(&packet->flow, connection, EVENT_REFUSED, EVENT_REASON_BACKEND_RESET);
	else if (connection->reply)
		observe_entry(&packet->flow, connection, EVENT_ANSWERED, EVENT_REASON_NONE);
	else if (tcp_opens(tcp_flags))
		observe_entry(&packet->flow, connection, EVENT_REPEATED, EVENT_REASON_NONE);
}
