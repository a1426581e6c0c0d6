/*
 * Failed connections of sockets, which no packet shows: these are translated at connect(). They are
 * counted, and told if they are observed. The kernel calls these programs when a segment is sent
 * again and when a reset comes, so a connection that works costs nothing. They do not see a
 * connection that an ICMP error refuses, and one that its process gives up before the second SYN.
 *
 * These programs may not read a socket's storage, so they find the backend by the socket's cookie.
 */
#pragma once

#include "lib/tracepoint.h"
#include "maps/backend_failures.h"
#include "maps/events.h"
#include "maps/peer_names.h"
#include "path/socket/kernel_socket.h"
#include "path/socket/observe_connected.h"

/* Count the failure of a socket that is connecting to a backend: the first one only. */
static inline void connecting_failed(struct peer_name *name, enum failure kind)
{
	__u32 counters = name->counters;

	if (counters & PEER_FAILED)
		return;
	name->counters = counters | PEER_FAILED;
	count_failure(counters & PEER_COUNTERS, kind);
}

/* A socket sends a segment again. */
static inline int socket_sends_again(struct raw_tracepoint *context)
{
	__u64 socket = context->arguments[0];
	struct peer_name *name;

	if (kernel_socket_state(socket) != SOCKET_SYN_SENT)
		return 0;
	name = kernel_socket_name(socket);
	if (!name)
		return 0;
	connecting_failed(name, FAILURE_UNANSWERED);
	if (name->counters & PEER_OBSERVED)
		observe_next(socket, name, EVENT_REPEATED);
	return 0;
}

/* A socket gets a reset: of its SYN, or of its connection. */
static inline int socket_is_reset(struct raw_tracepoint *context)
{
	__u64 socket = context->arguments[0];
	struct peer_name *name = kernel_socket_name(socket);
	bool connects;

	if (!name)
		return 0;
	connects = kernel_socket_state(socket) == SOCKET_SYN_SENT;
	if (connects)
		connecting_failed(name, FAILURE_REFUSED);
	if (name->counters & PEER_OBSERVED)
		observe_last(name, connects ? EVENT_REFUSED : EVENT_ENDED,
			     EVENT_REASON_BACKEND_RESET);
	return 0;
}
