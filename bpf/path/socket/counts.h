/* Connected sockets count for the load of their backend. */
#pragma once

#include "lib/socket_helpers.h"
#include "lib/wire.h"
#include "maps/events.h"
#include "maps/peer_names.h"
#include "maps/socket_loads.h"
#include "path/socket/call.h"
#include "path/socket/kernel_socket.h"
#include "path/socket/observe_connected.h"

/*
 * Count a socket for the load of its backend. Of an MPTCP socket only its own end is seen, and not
 * the ends of its paths.
 */
static inline void socket_count(struct bpf_sock_addr *context, const struct socket_call *call)
{
	bool datagram = call->asked.protocol != PROTO_TCP;
	void *mptcp = datagram ? NULL : skc_to_mptcp_sock(call_socket(context));
	struct socket_load *counted;

	if (mptcp)
		counted = socket_loads.sk_storage_get(mptcp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	else
		counted = socket_loads.sk_storage_get(call_socket(context), 0,
						      BPF_SK_STORAGE_GET_F_CREATE);
	if (counted)
		socket_load_begin(counted, call->choice.backend.counters, datagram);
}

/* A socket that connects anew counts for nothing until it has another backend. */
static inline void socket_uncount(struct bpf_sock_addr *context)
{
	struct socket_load *counted = socket_loads.sk_storage_get(call_socket(context), 0, 0);

	if (counted)
		socket_load_end(counted);
}

/* The end of a socket. */
static inline int socket_end(struct bpf_sock *context)
{
	struct socket_load *counted = socket_loads.sk_storage_get(context, 0, 0);
	struct peer_name *name;

	if (counted)
		socket_load_end(counted);
	if (context->protocol != PROTO_TCP)
		return 1;
	name = peer_name_held(socket_cookie(context));
	if (!name)
		return 1;
	if (name->counters & PEER_OBSERVED)
		observe_last(name, EVENT_ENDED,
			     context->state == SOCKET_SYN_SENT ? EVENT_REASON_UNANSWERED :
								 EVENT_REASON_CLOSED);
	name->socket = 0;
	return 1;
}
