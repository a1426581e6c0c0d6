/*
 * What is told about TCP sockets whose connect() was translated and told (path/socket/observe.h):
 * whether their backends answer, and how they end. No packet shows these connections: the programs
 * at tracepoints of sockets see them, and the end of a socket.
 *
 * Only a socket that has its place in `peer_names` is told about, and its end once.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/backends.h"
#include "maps/events.h"
#include "maps/observed_sockets.h"
#include "maps/peer_names.h"
#include "path/socket/call.h"
#include "path/socket/kernel_socket.h"

/* A call of connect() is told: what becomes of the connection will be told, too. */
static inline void observe_connecting(__u64 socket, const struct socket_call *call)
{
	struct peer_name *name = peer_name_held(socket);
	struct observed_socket observed = {};

	if (!name)
		return;
	observed.since = bpf_ktime_get_ns();
	observed.client = call->client.address;
	observed.client_port = call->client.port;
	observed.service = call->choice.service;
	if (!observed_sockets.update(&socket, &observed))
		name->counters |= PEER_OBSERVED;
}

/* Tell what becomes of the connection of an observed socket. */
static inline void observe_connected(const struct peer_name *name,
				     const struct observed_socket *socket, enum event_kind kind,
				     __u8 reason)
{
	struct observed *wanted = observed_if(kind);
	struct event *event;

	if (!wanted)
		return;
	event = event_begin(kind, wanted->connections);
	if (!event)
		return;
	event->took_us = (event->time - socket->since) / 1000;
	event->client = socket->client;
	event->client_port = socket->client_port;
	event->frontend = name->frontend;
	event->frontend_port = name->frontend_port;
	event->backend = name->backend;
	event->backend_port = name->backend_port;
	event->protocol = PROTO_TCP;
	event->service = socket->service;
	event->counters = name->counters & PEER_COUNTERS;
	event->reason = reason;
	event->path = EVENT_BY_SOCKET;
	event->masquerade = 0;
	event_emit(event);
}

/* Tell how the connection of an observed socket ends, and observe it no longer. */
static inline void observe_last(struct peer_name *name, enum event_kind kind, __u8 reason)
{
	__u64 cookie = name->socket;
	struct observed_socket *socket = observed_sockets.lookup(&cookie);

	name->counters &= ~PEER_OBSERVED;
	if (!socket)
		return;
	observe_connected(name, socket, kind, reason);
	observed_sockets.delete(&cookie);
}

/*
 * Tell that the backend of an observed socket answers, or that the socket sends its SYN again. The
 * socket has an address and a port now.
 */
static inline void observe_next(__u64 socket, const struct peer_name *name, enum event_kind kind)
{
	__u64 cookie = name->socket;
	struct observed_socket *observed = observed_sockets.lookup(&cookie);
	struct flow flow = {};

	if (!observed)
		return;
	socket_flow(socket, &flow);
	observed->client = flow.source;
	observed->client_port = flow.source_port;
	observe_connected(name, observed, kind, EVENT_REASON_NONE);
}
