/* UDP sockets of the node that connect() sent to a backend. */
#pragma once

#include "lib/address.h"
#include "lib/map.h"
#include "lib/socket_helpers.h"
#include "maps/backends.h"
#include "maps/frontends.h"

/* The frontend that the socket asked for, and the backend it got: then its peer. */
struct udp_socket {
	struct address frontend;
	struct address backend;
	__be16 frontend_port;
	__be16 backend_port;
};

/*
 * By the socket's cookie. A connected socket makes no further call that could be translated, so
 * the agent closes it when its backend ceases to serve; it also removes entries of closed sockets.
 * Nothing is evicted: a socket that finds no room is not closed.
 */
MAP("hash", __u64, struct udp_socket, udp_sockets, 262144, BPF_F_NO_PREALLOC);

/* Note what frontend a connected socket of the node asked for. */
static inline void udp_socket_note(struct bpf_sock_addr *context, const struct frontend_key *asked,
				   const struct backend *backend)
{
	struct udp_socket entry = {.frontend = asked->address,
				   .frontend_port = asked->port,
				   .backend = backend->address,
				   .backend_port = backend->port};
	__u64 socket = socket_cookie(context);

	udp_sockets.update(&socket, &entry);
}

/* A socket connects to an address that is not a frontend. */
static inline void udp_socket_forget(struct bpf_sock_addr *context)
{
	__u64 socket = socket_cookie(context);

	udp_sockets.delete(&socket);
}
