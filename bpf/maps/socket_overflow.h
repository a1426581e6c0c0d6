/*
 * Translations of sockets of the node that send to more frontends than their storage has room for.
 * Each is here twice, by its frontend and by its backend.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"
#include "maps/socket_storage.h"

struct overflow_key {
	__u64 socket; /* its cookie */
	struct address address;
	__be16 port;
	__u16 is_backend;
	__u32 zero;
};

MAP("lru_hash", struct overflow_key, struct socket_translation, socket_overflow, 16384, 0);

static inline struct socket_translation *overflow_find(__u64 socket, const struct address *address,
						       __be16 port, bool is_backend)
{
	struct overflow_key key = {
		.socket = socket, .address = *address, .port = port, .is_backend = is_backend};

	return socket_overflow.lookup(&key);
}

static inline void overflow_note(__u64 socket, const struct address *address, __be16 port,
				 bool is_backend, struct socket_translation *entry)
{
	struct overflow_key key = {
		.socket = socket, .address = *address, .port = port, .is_backend = is_backend};

	socket_overflow.update(&key, entry);
}
