/*
 * How long sockets of this machine take to connect to a Service. The kernel calls this program when
 * the state of a socket changes; of all changes, two are of use.
 *
 * The packets of a socket are translated by its calls or by tc: the backend is known by the cookie
 * of the socket, or by the entry of the connection.
 */
#pragma once

#include "lib/flow.h"
#include "lib/tracepoint.h"
#include "maps/connect_times.h"
#include "maps/connections.h"
#include "maps/events.h"
#include "maps/peer_names.h"
#include "path/socket/kernel_socket.h"
#include "path/socket/observe_connected.h"

/*
 * Return the index of the backend that a socket is connected to; 0 if it is to no Service. `name`:
 * the place of the socket, or NULL.
 */
static inline __u32 socket_backend(__u64 socket, const struct peer_name *name)
{
	struct connection *connection;
	struct flow flow = {};

	if (name)
		return name->counters & PEER_COUNTERS;
	if (!socket_flow(socket, &flow))
		return 0;
	/* Packets of pods come to the node. For the node's own processes no connection is opened. */
	flow.hook = HOOK_INGRESS;
	connection = connection_find(&flow);
	return connection && !connection->reply ? connection->counters : 0;
}

/*
 * Tell that the connection of an observed socket is established, or that the kernel has given it up
 * while a process has the socket. (A reset has been told before.)
 */
static inline void observe_state(__u64 socket, struct peer_name *name, __u32 from, __u32 to)
{
	if (to == SOCKET_ESTABLISHED)
		observe_next(socket, name, EVENT_ANSWERED);
	else
		observe_last(name, EVENT_ENDED,
			     from == SOCKET_SYN_SENT ? EVENT_REASON_UNANSWERED :
						       EVENT_REASON_GIVEN_UP);
}

/* The state of a socket changes. */
static inline int socket_state_follow(struct raw_tracepoint *context)
{
	__u64 socket = context->arguments[0];
	__u32 from = context->arguments[1], to = context->arguments[2];
	struct peer_name *name;
	__u64 took = 0;

	if (to == SOCKET_SYN_SENT)
		connecting_begin(socket >> 6);
	if (from == SOCKET_SYN_SENT)
		took = connecting_end(socket >> 6);
	else if (to != SOCKET_CLOSED || !observed_if(EVENT_ENDED))
		return 0;
	name = kernel_socket_name(socket);
	if (took && to == SOCKET_ESTABLISHED)
		connect_time_count(socket_backend(socket, name), took - 1);
	if (name && name->counters & PEER_OBSERVED &&
	    (to == SOCKET_ESTABLISHED || to == SOCKET_CLOSED))
		observe_state(socket, name, from, to);
	return 0;
}
