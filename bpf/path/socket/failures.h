/*
 * Failed connections of sockets, which no packet shows: these are translated at connect(). The
 * kernel calls these programs when a segment is sent again and when a reset comes, so a connection
 * that works costs nothing. They do not see a connection that an ICMP error refuses, and one that
 * its process gives up before the second SYN.
 *
 * These programs may not read a socket's storage, so they find the backend by the socket's cookie.
 */
#pragma once

#include "lib/map.h"
#include "lib/tracepoint.h"
#include "maps/backend_failures.h"
#include "maps/peer_names.h"

enum { SOCKET_SYN_SENT = 2 }; /* TCP_SYN_SENT */

/* Count the failure of a socket that is connecting to a backend: the first one only. */
static inline int socket_failed(struct raw_tracepoint *context, enum failure kind)
{
	/* The first argument of both tracepoints. */
	__u64 socket = context->arguments[0], cookie = 0;
	struct peer_name *entry;
	__u32 counters;
	__u8 state = 0;

	if (read_kernel(&state, sizeof(state), socket + LOADED_NUMBER(SOCKET_STATE)) ||
	    state != SOCKET_SYN_SENT ||
	    read_kernel(&cookie, sizeof(cookie), socket + LOADED_NUMBER(SOCKET_COOKIE)) || !cookie)
		return 0;
	entry = peer_name_place(cookie);
	if (!entry || entry->socket != cookie)
		return 0;
	counters = entry->counters;
	if (counters & PEER_FAILED)
		return 0;
	entry->counters = counters | PEER_FAILED;
	count_failure(counters, kind);
	return 0;
}
