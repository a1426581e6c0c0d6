/*
 * What programs at tracepoints of sockets read of the kernel's own `struct sock`: the agent says
 * where its fields are (LOADED_SOCKET_*).
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/map.h"
#include "lib/tracepoint.h"
#include "lib/wire.h"
#include "maps/peer_names.h"

/* States of TCP. */
enum { SOCKET_ESTABLISHED = 1, SOCKET_SYN_SENT = 2, SOCKET_CLOSED = 7 };

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

/* Return the state of a socket. */
static inline __u8 kernel_socket_state(__u64 socket)
{
	__u8 state = 0;

	read_kernel(&state, sizeof(state), socket + LOADED_NUMBER(SOCKET_STATE));
	return state;
}

/* Return the place in `peer_names` of a socket that has it, or NULL. */
static inline struct peer_name *kernel_socket_name(__u64 socket)
{
	__u64 cookie = 0;

	read_kernel(&cookie, sizeof(cookie), socket + LOADED_NUMBER(SOCKET_COOKIE));
	return cookie ? peer_name_held(cookie) : NULL;
}
