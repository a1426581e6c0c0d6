/*
 * How long sockets of this machine take to connect to a Service. The kernel calls this program when
 * the state of a socket changes; of all changes, two are of use.
 *
 * The packets of a socket are translated by its calls or by tc: the backend is known by the cookie
 * of the socket, or by the entry of the connection.
 */
#pragma once

#include "lib/flow.h"
#include "lib/map.h"
#include "lib/tracepoint.h"
#include "lib/wire.h"
#include "maps/connect_times.h"
#include "maps/connections.h"
#include "maps/peer_names.h"
#include "path/socket/failures.h"

enum { SOCKET_ESTABLISHED = 1 }; /* TCP_ESTABLISHED */

/* The begin of the kernel's `struct sock_common`. The agent checks where it has the family. */
struct socket_start {
	__be32 remote_v4;
	__be32 local_v4;
	__u32 hash;
	__be16 remote_port;
	__u16 local_port; /* the only number here that is in the order of the machine */
	__u16 family;
	__u16 zero;
};

/* The addresses that follow one another there. */
struct socket_addresses_v6 {
	__be32 remote[4];
	__be32 local[4];
};

/*
 * Write the flow of what a socket sends; false if it is of another family. (Memory that cannot be
 * read stays 0, which is no flow of a connection. A kernel without IPv6 has no socket of it.)
 */
static inline bool socket_flow(__u64 socket, struct flow *flow)
{
	struct socket_addresses_v6 v6 = {};
	struct socket_start start = {};

	read_kernel(&start, sizeof(start), socket);
	if (start.family == AF_INET) {
		address_from_v4(&flow->source, start.local_v4);
		address_from_v4(&flow->destination, start.remote_v4);
	} else if (start.family == AF_INET6) {
		read_kernel(&v6, sizeof(v6), socket + LOADED_NUMBER(SOCKET_V6));
		address_from_v6(&flow->source, v6.local);
		address_from_v6(&flow->destination, v6.remote);
	} else {
		return false;
	}
	flow->source_port = bpf_htons(start.local_port);
	flow->destination_port = start.remote_port;
	flow->protocol = PROTO_TCP;
	return true;
}

/* Return the index of the backend that a socket is connected to; 0 if it is to no Service. */
static inline __u32 socket_backend(__u64 socket)
{
	struct connection *connection;
	struct peer_name *name;
	struct flow flow = {};
	__u64 cookie = 0;

	read_kernel(&cookie, sizeof(cookie), socket + LOADED_NUMBER(SOCKET_COOKIE));
	name = cookie ? peer_name_place(cookie) : NULL;
	if (name && name->socket == cookie)
		return name->counters & ~PEER_FAILED;
	if (!socket_flow(socket, &flow))
		return 0;
	/* Packets of pods come to the node, those of its own processes only leave it. */
	flow.hook = HOOK_INGRESS;
	connection = connection_find(&flow);
	if (!connection) {
		flow.hook = HOOK_EGRESS;
		connection = connection_find(&flow);
	}
	return connection && !connection->reply ? connection->counters : 0;
}

/* The state of a socket changes. */
static inline int socket_state_follow(struct raw_tracepoint *context)
{
	__u64 socket = context->arguments[0];
	__u32 from = context->arguments[1], to = context->arguments[2];
	__u64 took;

	if (to == SOCKET_SYN_SENT)
		connecting_begin(socket >> 6);
	if (from != SOCKET_SYN_SENT)
		return 0;
	took = connecting_end(socket >> 6);
	if (took && to == SOCKET_ESTABLISHED)
		connect_time_count(socket_backend(socket), took - 1);
	return 0;
}
