/*
 * The translations that a socket remembers. A call to a frontend gets the same backend again, and a
 * datagram or name from a backend gets the address of the frontend that was asked.
 */
#pragma once

#include "lib/address.h"
#include "lib/socket_helpers.h"
#include "lib/wire.h"
#include "maps/backends.h"
#include "maps/peer_names.h"
#include "maps/settings.h"
#include "maps/socket_overflow.h"
#include "maps/socket_storage.h"
#include "path/socket/call.h"

/* True if more translations of a socket of the node are in `socket_overflow`. */
static inline bool socket_overflowed(const struct socket_translations *known)
{
	return known->next > SOCKET_TRANSLATIONS;
}

/* Return what names an answer that comes from `backend`, or NULL. */
static inline struct socket_translation *socket_named(struct bpf_sock_addr *context,
						      struct socket_translations *known,
						      const struct address *backend, __be16 port)
{
	struct socket_translation *row = socket_row_of_backend(known, backend, port);
	struct socket_translation *more;

	if (!socket_overflowed(known))
		return row;
	more = overflow_find(socket_cookie(context), backend, port, true);
	return more && (!row || more->used > row->used) ? more : row;
}

/*
 * Find the translation that an earlier sendmsg() got for this frontend, and use it. True if there
 * is one and its backend still serves. `known`: the translations of the socket.
 */
static inline bool socket_reuse(struct bpf_sock_addr *context, bool v4,
				const struct settings *settings, const struct socket_call *call,
				struct socket_translations *known)
{
	struct socket_translation *entry = socket_row(known, &call->asked);
	bool more = !entry && socket_overflowed(known);

	if (more)
		entry = overflow_find(socket_cookie(context), &call->asked.address,
				      call->asked.port, false);
	if (!entry || !translation_is_valid(entry))
		return false;
	if (known->calls) {
		entry->used = ++known->calls;
		if (more)
			overflow_note(socket_cookie(context), &entry->backend.by.address,
				      entry->backend.by.port, true, entry);
	}
	/* A connected socket of a pod is left to tc. */
	if (!udp_is_connected(context) || call->cookie == settings->netns_cookie)
		socket_set_address(context, v4, &entry->backend.by.address, entry->backend.by.port);
	return true;
}

/* Note a translation, in the socket itself or, when that is full, in `socket_overflow`. */
static inline void socket_remember(struct bpf_sock_addr *context, struct socket_translations *known,
				   const struct socket_call *call, bool direct)
{
	struct socket_translation *row = &known->rows[known->found % SOCKET_TRANSLATIONS];
	struct socket_translation entry = {};
	__u32 next = known->next;
	__u64 cookie;

	/*
	 * If the frontend has a row with a backend that has left, socket_row() has found it before.
	 */
	if (!translation_is_to(row, &call->asked)) {
		row = NULL;
		if (next < SOCKET_TRANSLATIONS) {
			row = &known->rows[next];
			known->next = next + 1;
		}
	}
	translation_write(&entry, &call->asked, &call->choice);
	entry.direct = direct;
	if (known->calls)
		entry.used = ++known->calls;
	if (row) {
		*row = entry;
		return;
	}
	known->next = SOCKET_TRANSLATIONS + 1;
	cookie = socket_cookie(context);
	overflow_note(cookie, &entry.frontend, entry.frontend_port, false, &entry);
	overflow_note(cookie, &entry.backend.by.address, entry.backend.by.port, true, &entry);
}

/* True if the socket has the chosen backend for another frontend, too. */
static inline bool socket_shares(struct bpf_sock_addr *context, struct socket_translations *known,
				 const struct socket_call *call)
{
	const struct backend *backend = &call->choice.backend;
	struct socket_translation *other =
		socket_named(context, known, &backend->address, backend->port);

	return other && !translation_is_to(other, &call->asked);
}

/* getpeername of a socket without translations: one of a pod may have its name elsewhere. */
static inline void socket_reverse_named(struct bpf_sock_addr *context, bool v4,
					const struct address *peer, __be16 port)
{
	struct peer_name *name = NULL;

	if (context->protocol == PROTO_TCP)
		name = peer_name_of(socket_cookie(context), peer, port);
	if (name)
		socket_set_address(context, v4, &name->frontend, name->frontend_port);
}

/* recvmsg and getpeername: replace the address of a backend by the frontend. */
static inline int socket_reverse(struct bpf_sock_addr *context, bool v4)
{
	struct socket_translations *known;
	struct socket_translation *entry;
	struct address peer;
	__be16 port;

	port = (__be16)context->user_port;
	if (!port)
		return 1;
	socket_address(context, v4, &peer);
	known = socket_translations.sk_storage_get(call_socket(context), 0, 0);
	if (!known) {
		socket_reverse_named(context, v4, &peer, port);
		return 1;
	}
	entry = socket_named(context, known, &peer, port);
	if (entry)
		socket_set_address(context, v4, &entry->frontend, entry->frontend_port);
	return 1;
}
