/*
 * The frontends of connected TCP sockets of pods, for getpeername(). That is all that such a socket
 * has to remember, once its namespace is known, and a place here costs a small part of the storage
 * of a socket. A socket has the place of its cookie, if that is free, until it is closed; if it is
 * not, its storage is used. Cookies are given in turn, so most places are still in the cache.
 *
 * A socket that is closed while no program is attached keeps its place, because its cookie does not
 * come again. That place is lost, and no more.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"
#include "maps/frontends.h"
#include "maps/udp_sockets.h"

#define PEER_NAMES 65536 /* a power of two */

struct peer_name {
	__u64 socket; /* its cookie; 0: the place is free */
	struct address frontend;
	__be16 frontend_port;
	__u16 zero[3];
};

MAP("array", __u32, struct peer_name, peer_names, PEER_NAMES, 0);

static inline struct peer_name *peer_name_place(__u64 socket)
{
	__u32 index = socket & (PEER_NAMES - 1);

	return peer_names.lookup(&index);
}

/* Return the place that a socket has, or NULL. */
static inline struct peer_name *peer_name_of(__u64 socket)
{
	struct peer_name *place = peer_name_place(socket);

	return place && place->socket == socket ? place : NULL;
}

/* Note what a socket has asked for. False if its place is another socket's. */
static inline bool peer_name_note(__u64 socket, const struct frontend_key *asked)
{
	struct peer_name *place = peer_name_place(socket);

	if (!place || __sync_val_compare_and_swap(&place->socket, 0, socket))
		return false;
	place->frontend = asked->address;
	place->frontend_port = asked->port;
	return true;
}

/* A socket is closed, or connects anew. */
static inline void peer_name_end(__u64 socket)
{
	struct peer_name *place = peer_name_of(socket);

	if (place)
		place->socket = 0;
}
