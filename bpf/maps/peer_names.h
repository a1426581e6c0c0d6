/*
 * The frontends of connected TCP sockets of pods, for getpeername(). That is all that such a socket
 * has to remember, once its namespace is known, and a place here costs a small part of the storage
 * of a socket. A socket has the place of its cookie, if that is free, until it is closed; if it is
 * not, its storage is used. A CPU gives cookies in turn, so places in turn are used, and the next
 * ones are in the cache.
 *
 * Nobody frees the place of a socket that is closed while no program is attached, or of one that
 * belongs to the kernel (SMC, NFS), whose end is not told. It is lost for others, and no more: its
 * cookie does not come again.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"
#include "maps/backends.h"
#include "maps/frontends.h"

#define PEER_NAMES 32768 /* a power of two */

struct peer_name {
	__u64 socket; /* its cookie; 0: the place is free */
	struct address frontend;
	struct address backend;
	__be16 frontend_port;
	__be16 backend_port;
	__u32 zero;
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

/* Note what a socket has asked for and got. False if its place is another socket's. */
static inline bool peer_name_note(__u64 socket, const struct frontend_key *asked,
				  const struct backend *backend)
{
	struct peer_name *entry = peer_name_place(socket);

	if (!entry || __sync_val_compare_and_swap(&entry->socket, 0, socket))
		return false;
	entry->frontend = asked->address;
	entry->frontend_port = asked->port;
	entry->backend = backend->address;
	entry->backend_port = backend->port;
	return true;
}

/* A socket is closed, or connects anew. */
static inline void peer_name_end(__u64 socket)
{
	struct peer_name *entry = peer_name_place(socket);

	if (entry && entry->socket == socket)
		entry->socket = 0;
}
