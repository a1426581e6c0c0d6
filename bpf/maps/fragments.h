/*
 * Fragments after the first carry no ports. Those of the first one are noted here, under what all
 * fragments of a datagram have in common, for the others that pass the same hook. A fragment that
 * overtook the first one goes through the queue of its interface again, until the first one has
 * passed or too much time has.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"
#include "lib/wire.h"

struct fragment_key {
	struct address source;
	struct address destination;
	__u32 id;
	__u8 protocol; /* IPv4 counts ids for each; 0 with IPv6, where headers may be in between */
	__u8 hook;
	__u16 zero;
};

struct fragment_start {
	struct ports ports;
	__u8 protocol;
	__u8 state; /* of enum fragment_state */
	__u8 zero[2];
	__u64 since; /* ns; when the first of them was awaited */
};

enum fragment_state {
	FRAGMENT_TRANSLATED = 1, /* its first fragment was translated */
	FRAGMENT_PASSED = 2,	 /* its first fragment passed as it was */
	FRAGMENT_AWAITED = 3,	 /* its first fragment has not come */
	FRAGMENT_ANSWERED = 4,	 /* its first fragment was an echo request, and was answered */
};

#define MAX_FRAGMENTS 8192 /* datagrams at a time */

MAP("lru_hash", struct fragment_key, struct fragment_start, fragments, MAX_FRAGMENTS, 0);
