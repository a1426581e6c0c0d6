/*
 * What a connected socket of the node counts for, and what a TCP socket is about to be connected to.
 * It is in the storage of the socket itself, so that the hook of its end can take it back.
 */
#pragma once

#include "lib/map.h"
#include "maps/backend_loads.h"

struct socket_load {
	__u32 counters; /* of the backend; 0: it counts for none */
	__u32 datagram; /* UDP */
	/* The backend of which it is to be noted how this attempt to connect ends; 0: of none. */
	__u32 attempt;
	__u32 zero;
};

SOCKET_STORAGE(struct socket_load, socket_loads);

static inline void socket_load_add(const struct socket_load *counted, __s32 sockets)
{
	__u32 backend = counted->counters;
	struct backend_load *load = backend_loads.lookup(&backend);
	__u64 number = counted->datagram ? load_of(0, sockets) : load_of(sockets, 0);

	if (!load)
		return;
	__sync_fetch_and_add(&load->connections, number);
	__sync_fetch_and_add(&load->sockets, number);
}

/*
 * Take back what a socket counts for. A process that ends it while it connects has given up, which
 * says nothing about the backend.
 */
static inline void socket_load_end(struct socket_load *counted)
{
	counted->attempt = 0;
	if (!counted->counters)
		return;
	socket_load_add(counted, -1);
	counted->counters = 0;
}

/* Have a socket count for a backend, and for no other. */
static inline void socket_load_begin(struct socket_load *counted, __u32 backend, bool datagram)
{
	socket_load_end(counted);
	counted->counters = backend;
	counted->datagram = datagram;
	socket_load_add(counted, 1);
}
