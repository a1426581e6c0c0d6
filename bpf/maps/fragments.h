/*
 * Fragments after the first carry no ports. Those of the first one are noted here, under what all
 * fragments of a datagram have in common, for the others that pass the same hook. A fragment that
 * overtook the first one goes through the queue of its interface again, until the first one has
 * passed or too much time has.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/map.h"
#include "lib/scratch.h"
#include "lib/wire.h"
#include "maps/fragment_budgets.h"

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

static inline void fragment_key_of(struct fragment_key *key, const struct packet *packet)
{
	key->source = packet->flow.source;
	key->destination = packet->flow.destination;
	key->id = packet->fragment_id;
	key->protocol = packet->fragment_protocol;
	key->hook = packet->flow.hook;
	key->zero = 0;
}

static inline void fragment_note(const struct packet *packet, __u8 state)
{
	struct fragment_start start = {};
	struct fragment_key key;

	start.ports.source = packet->flow.source_port;
	start.ports.destination = packet->flow.destination_port;
	start.protocol = packet->flow.protocol;
	start.state = state;
	fragment_key_of(&key, packet);
	fragments.update(&key, &start);
}

/*
 * Note a first fragment that is not translated, so that others do not wait for it. At egress none
 * waits, and it matters only where an earlier datagram with this id was translated.
 */
static inline void fragment_passed(const struct packet *packet)
{
	struct fragment_key key;

	if (packet->fragment != FRAGMENT_FIRST)
		return;
	fragment_key_of(&key, packet);
	if (packet->flow.hook == HOOK_INGRESS || fragments.lookup(&key))
		fragment_note(packet, FRAGMENT_PASSED);
}

/*
 * Copy protocol and ports of the first fragment to a later one. Return the state of the first, or
 * 0.
 */
static inline __u8 fragment_recall(struct packet *packet)
{
	struct fragment_key key;
	struct fragment_start *start;

	fragment_key_of(&key, packet);
	start = fragments.lookup(&key);
	if (!start)
		return 0;
	if (start->state != FRAGMENT_TRANSLATED)
		return start->state;
	packet->flow.protocol = start->protocol;
	packet->flow.source_port = start->ports.source;
	packet->flow.destination_port = start->ports.destination;
	return FRAGMENT_TRANSLATED;
}

#define FRAGMENT_PATIENCE 10000000 /* ns */

/* True if a fragment whose first one has not been seen may be queued again. */
static inline bool fragment_may_wait(const struct packet *packet)
{
	__u64 now = bpf_ktime_get_ns();
	struct fragment_start *start, awaited = {};
	struct fragment_key key;

	fragment_key_of(&key, packet);
	start = fragments.lookup(&key);
	if (!start) {
		awaited.state = FRAGMENT_AWAITED;
		awaited.since = now;
		/* Another CPU may be handling the first one now: what it notes must stay. */
		fragments.insert(&key, &awaited);
	} else if (now - start->since > FRAGMENT_PATIENCE) {
		return false;
	}
	return fragment_budget_take(now);
}
