/*
 * What the first fragment of a datagram leaves for the later ones, and how long a later one waits.
 */
#pragma once

#include "lib/flow.h"
#include "maps/fragment_budgets.h"
#include "maps/fragments.h"
#include "path/packet.h"

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

/* True if a later fragment may be queued again, because its first one has not been seen. */
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
