/*
 * Translations of a socket: the frontends it asked for, and the backends it got. They are in the
 * storage of the socket itself, so there is always room, and they end with the socket. recvmsg()
 * and getpeername() translate back by them. Most TCP sockets of pods do without (peer_names.h).
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"
#include "maps/backends.h"
#include "maps/endpoints.h"
#include "maps/frontends.h"
#include "maps/settings.h"
#include "maps/udp_serving.h"

#define SOCKET_TRANSLATIONS 8

struct socket_translation {
	struct address frontend;
	__be16 frontend_port;
	__u16 direct; /* the backend was asked by its own address: nothing is translated */
	struct served backend;
	__u64 chosen; /* ns, CLOCK_MONOTONIC */
	__u64 used;   /* the number of the latest call, see below */
};

/* A TCP or connected socket has one; a UDP socket may send to several frontends in turn. */
struct socket_translations {
	struct socket_translation rows[SOCKET_TRANSLATIONS];
	__u32 next;	    /* row to be written; beyond the last: there are more elsewhere */
	__u32 by_packets;   /* tc translates flows of this socket, and so must new ones */
	__u64 netns_cookie; /* of the namespace that its next packet teaches about; 0: none */
	struct frontend_key asked; /* what the choice below was made for */
	struct backend itself;	   /* the client is its own backend, for tc; port 0: no */
	/*
	 * Counts calls from when two rows have one backend, else 0. The row that was used last
	 * then says who its answers come from.
	 */
	__u64 calls;
	__u32 found;	/* the row of the latest call, */
	__u32 answered; /* and of the latest answer */
};

SOCKET_STORAGE(struct socket_translations, socket_translations);

static inline bool translation_is_to(const struct socket_translation *entry,
				     const struct frontend_key *key)
{
	return !(address_difference(&entry->frontend, &key->address) |
		 (entry->frontend_port ^ key->port));
}

static inline bool translation_is_by(const struct socket_translation *entry,
				     const struct address *backend, __be16 port)
{
	return !(address_difference(&entry->backend.by.address, backend) |
		 (entry->backend.by.port ^ port));
}

/* True if the backend still serves: also one that gets no new flows keeps those it has. */
static inline bool translation_is_valid(struct socket_translation *entry)
{
	__u32 *serves;

	if (entry->direct)
		return true;
	serves = udp_serving.lookup(&entry->backend);
	if (serves)
		return *serves != UDP_LEFT;
	return (__s64)(bpf_ktime_get_coarse_ns() - entry->chosen) <
		       CHOICE_FRESH_SECONDS * NS_PER_SECOND &&
	       endpoints.lookup(&entry->backend.by);
}

/*
 * Return the row of this frontend, whether its backend still serves or not. (What a search finds
 * goes through the map, and is then checked: a pointer to one of eight rows would multiply the
 * paths that the verifier follows. It also begins the next search. After a loop the barrier has it
 * read again: kept in a register, it would multiply them, too.)
 */
static inline struct socket_translation *socket_row(struct socket_translations *known,
						    const struct frontend_key *key)
{
	struct socket_translation *row = &known->rows[known->found % SOCKET_TRANSLATIONS];

	if (translation_is_to(row, key))
		return row;
#pragma clang loop unroll(disable)
	for (int i = 0; i < SOCKET_TRANSLATIONS; i++)
		if (translation_is_to(&known->rows[i], key)) {
			known->found = i;
			break;
		}
	asm volatile("" ::: "memory");
	row = &known->rows[known->found % SOCKET_TRANSLATIONS];
	return translation_is_to(row, key) ? row : NULL;
}

/* Return a row of this backend: of several rows, the row of the latest call. */
static inline struct socket_translation *
socket_row_of_backend(struct socket_translations *known, const struct address *backend, __be16 port)
{
	struct socket_translation *row = &known->rows[known->answered % SOCKET_TRANSLATIONS];
	__u64 used = 0;

	if (!known->calls && translation_is_by(row, backend, port))
		return row;
#pragma clang loop unroll(disable)
	for (int i = 0; i < SOCKET_TRANSLATIONS; i++) {
		struct socket_translation *entry = &known->rows[i];

		if (translation_is_by(entry, backend, port) && entry->used >= used) {
			used = entry->used;
			known->answered = i;
		}
	}
	asm volatile("" ::: "memory");
	row = &known->rows[known->answered % SOCKET_TRANSLATIONS];
	return translation_is_by(row, backend, port) ? row : NULL;
}

static inline void translation_write(struct socket_translation *entry,
				     const struct frontend_key *key, const struct choice *choice)
{
	entry->frontend = key->address;
	entry->frontend_port = key->port;
	entry->direct = 0;
	entry->backend.service = choice->service;
	entry->backend.by.address = choice->backend.address;
	entry->backend.by.port = choice->backend.port;
	entry->backend.by.protocol = key->protocol;
	entry->chosen = bpf_ktime_get_coarse_ns();
}

/* Forget all rows: the socket connects anew. */
static inline void socket_forget(struct socket_translations *known)
{
	__builtin_memset(known->rows, 0, sizeof(known->rows));
	known->next = 0;
	known->calls = 0;
}
