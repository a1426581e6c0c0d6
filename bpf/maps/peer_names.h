/*
 * The frontends of connected TCP sockets of pods, for getpeername(). Such a socket has nothing else
 * to remember once its namespace is known, and an entry here costs a small part of a socket's
 * storage. Sockets that have storage are here, too: the programs that count failed connections
 * (path/socket/failures.h) know a socket by its cookie only, and read no storage.
 *
 * A socket's cookie gives its index. The socket has that entry until it is closed, if the entry was
 * free; if not, the socket's storage is used. A CPU gives out cookies in turn, so entries are used
 * in turn, and the next ones are in the cache.
 *
 * Nobody frees an entry if its socket is closed while no program is attached, or if the socket
 * belongs to the kernel (SMC, NFS): the end of such a socket is not told. Then the entry is lost
 * for other sockets, and no more: its cookie does not come again.
 */
#pragma once

#include "lib/address.h"
#include "lib/atomic.h"
#include "lib/map.h"
#include "maps/backends.h"
#include "maps/frontends.h"

#define PEER_NAMES 32768 /* a power of two */

/* Flags beside the index of a backend. */
#define PEER_FAILED 0x80000000	 /* a failure of the backend is counted */
#define PEER_OBSERVED 0x40000000 /* in `observed_sockets`, until its end is told */

enum { PEER_COUNTERS = 0x3fffffff }; /* the bits of the index */

struct peer_name {
	__u64 socket; /* its cookie; 0: the place is free */
	struct address frontend;
	struct address backend;
	__be16 frontend_port;
	__be16 backend_port;
	__u32 counters; /* of the backend, and flags */
};

MAP("array", __u32, struct peer_name, peer_names, PEER_NAMES, 0);

static inline struct peer_name *peer_name_place(__u64 socket)
{
	__u32 index = socket & (PEER_NAMES - 1);

	return peer_names.lookup(&index);
}

/* Return the name of a socket that is connected to a backend, or NULL. */
static inline struct peer_name *peer_name_of(__u64 socket, const struct address *backend,
					     __be16 port)
{
	struct peer_name *entry = peer_name_place(socket);

	return entry && entry->socket == socket && entry->backend_port == port &&
			       address_equal(&entry->backend, backend) ?
		       entry :
		       NULL;
}

/* Return the place of a socket that has it, or NULL. */
static inline struct peer_name *peer_name_held(__u64 socket)
{
	struct peer_name *entry = peer_name_place(socket);

	return entry && entry->socket == socket ? entry : NULL;
}

/*
 * Note what a socket has asked for and got. False if its place is another socket's, or if two
 * sockets could not be kept from taking it.
 */
static inline bool peer_name_note(__u64 socket, const struct frontend_key *asked,
				  const struct backend *backend)
{
	struct peer_name *entry = peer_name_place(socket);

	if (!entry || !LOADED_NUMBER(ATOMICS) || atomic_compare_and_swap(&entry->socket, 0, socket))
		return false;
	entry->frontend = asked->address;
	entry->frontend_port = asked->port;
	entry->backend = backend->address;
	entry->backend_port = backend->port;
	entry->counters = backend->counters;
	return true;
}

/* A socket is closed, or connects anew. */
static inline void peer_name_end(__u64 socket)
{
	struct peer_name *entry = peer_name_held(socket);

	if (entry)
		entry->socket = 0;
}
