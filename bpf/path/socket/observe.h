/*
 * What is told about the calls of sockets (maps/events.h). It is told by a subprogram, which the
 * verifier follows once.
 */
#pragma once

#include "lib/subprograms.h"
#include "maps/events.h"
#include "path/conn/observe.h"
#include "path/schedule/backend_select.h"
#include "path/schedule/choose.h"
#include "path/socket/call.h"

enum observe_argument_size {
	ARGUMENT_OBSERVE = sizeof(struct choosing),
};

/*
 * Tell what becomes of a call; return 1 if it is told. `chooser` is not needed any more: it has the
 * kind and the reason.
 */
static int (*observe)(struct choosing *choosing) = (void *)SUBPROGRAM_OBSERVE;

#define OBSERVED_REASON_SHIFT 8

int subprogram_observe(struct choosing *choosing)
{
	struct observed *wanted = observed_get();
	struct event *event;
	bool is_made;
	__u32 mask;

	if (!choosing || !wanted)
		return 0;
	is_made = (choosing->chooser & 0xff) == EVENT_MADE;
	mask = is_made ? wanted->connections : wanted->failures;
	if (!in_sample(mask))
		return 0;
	event = event_begin(choosing->chooser & 0xff, mask);
	if (!event)
		return 0;
	event->client = choosing->client.address;
	event->client_port = choosing->client.port;
	event->frontend = choosing->asked.address;
	event->frontend_port = choosing->asked.port;
	event->backend = choosing->choice.backend.address;
	event->backend_port = choosing->choice.backend.port;
	event->protocol = choosing->asked.protocol;
	event->service = choosing->choice.service;
	event->counters = choosing->choice.backend.counters;
	event->reason = choosing->chooser >> OBSERVED_REASON_SHIFT;
	event->path = EVENT_BY_SOCKET;
	event->masquerade = 0;
	if (!is_made) {
		event_address_clear(&event->backend);
		event->backend_port = 0;
		event->counters = 0;
	}
	event_emit(event);
	return 1;
}

/* Tell that a call is translated, or that it is refused; false if nobody wants to know. */
static inline bool observe_call(struct socket_call *call, __u8 kind, __u8 reason)
{
	if (!observed_if(kind))
		return false;
	call->chooser = kind | reason << OBSERVED_REASON_SHIFT;
	return observe((struct choosing *)&call->asked);
}
