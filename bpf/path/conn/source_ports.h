/*
 * Source ports that these programs choose. They are of a range that the agent reserves, so that
 * neither local sockets nor NodePorts use it. A port is taken by inserting the entry of its
 * replies.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/socket_lookup.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/direct_flows.h"
#include "maps/fast_flows.h"
#include "maps/netfilter_flows.h"
#include "maps/port_shortages.h"
#include "maps/settings.h"
#include "path/packet.h"

#define EAGAIN 11
#define ENOSPC 28

/*
 * The verifier follows every try of a round, and nearly all searches end in the first round. Each
 * further round is a tail call. Linux allows 33 tail calls.
 */
#define PORT_TRIES 2
#define SOURCE_PORT_ROUNDS 6
#define SOURCE_PORT_URGENT 4 /* from this round on: ports of flows that have just ended */
#define MASQUERADE_ROUNDS 16
#define CLOSED_FROM_ROUND 4
#define URGENT_FROM_ROUND 8
#define HANDSHAKE_MS 500 /* a client waits 1 s before it sends its SYN again */

/* Which ports a connection may have, besides those that none has. */
enum port_claim {
	CLAIM_FORGOTTEN, /* of connections that both ends have forgotten */
	CLAIM_CLOSED,	 /* and of those that were closed, or not answered, a while ago */
	CLAIM_URGENT,	 /* and of those that have just been closed, or open for too long */
	CLAIM_OVER,	 /* of those that were closed a while ago, or have half of their entries */
};

/* Begin a search for a port. The same random `seed` leads to the same ports. */
static inline struct port_search port_search_begin(__u32 seed)
{
	struct port_search search = {
		.number = seed * 0x9e3779b1,
		.stride = seed * 0x85ebca77 >> 8 | 1,
	};

	return search;
}

static inline __be16 port_search_next(struct port_search *search, const struct settings *settings)
{
	search->number += search->stride;
	return bpf_htons(settings->masquerade_first + search->number % settings->masquerade_ports);
}

/*
 * Begin the search for a port to masquerade to. Ports come in turn, so the first try is the port
 * that was not used for longest. For each backend the turn begins elsewhere, so a client does not
 * see which ports others get (RFC 6056, 3.3.3). The next tries are strides apart, because
 * connections that began together have adjacent ports. All tries are within the half of the ports
 * whose turn comes next, because those of the other half were used a moment ago; and the last ones
 * are far from the first, because ports just ahead may have been taken by other searches. The same
 * `turn` leads to the same ports. `wire` loses its source port.
 */
static inline void masquerade_search_begin(struct port_search *search,
					   const struct settings *settings, struct flow *wire,
					   __u16 turn)
{
	__u32 begin = wire->destination.words[3] ^ wire->destination.words[2] ^
		      wire->destination.words[1] ^ wire->destination_port ^ settings->port_secret;
	/* A quarter of the ports in all tries, so up to twice as much is a half. */
	__u32 reach = settings->masquerade_ports / (4 * PORT_TRIES * MASQUERADE_ROUNDS);

	*search = port_search_begin(turn);
	begin *= 0x9e3779b1;
	begin ^= begin >> 15;
	begin *= 0x85ebca77;
	search->stride = search->stride % (reach + 1) + reach + 1;
	search->first = (begin >> 1) + turn;
	search->number = search->first - search->stride;
	wire->source_port = 0;
	search->shortage = port_shortage_of(wire);
	if (search->shortage)
		search->claim = CLAIM_URGENT;
}

/*
 * True if a client that answers would have completed its handshake, or would have gone on after the
 * answer to its datagram. A flood to one backend has all ports that lead there: a new client gets
 * one of them only if it need not wait until the flood's connections are given up. (While a datagram
 * has no answer, nothing tells how long that takes.)
 */
static inline bool handshake_overdue(const struct flow *key, const struct connection *reply,
				     __u64 now)
{
	return key->hook == HOOK_INGRESS && (key->protocol != PROTO_UDP || reply->replied) &&
	       !reply->established && (__s64)(now - reply->created) > HANDSHAKE_MS * NS_PER_MS;
}

/* True for an attempt that its client has reset, and may go on with (attempt_goes_on()). */
static inline bool attempt_is_kept(const struct connection *reply)
{
	return reply->reset & RESET_BY_CLIENT && !reply->established;
}

/*
 * True if a connection is over, by the entry of its replies. Its last acknowledgement may come
 * after both sides have closed, so its port is free after a while, or at once if the matter is
 * urgent; and one that is never answered lives while its client sends.
 */
static inline bool reply_abandoned(const struct flow *key, const struct connection *reply,
				   enum port_claim claim)
{
	__s64 limit =
		(connection_closed(reply) ? LINGER_SECONDS : UNANSWERED_SECONDS) * NS_PER_SECOND;
	__u64 now = bpf_ktime_get_coarse_ns();
	struct connection *forward;
	struct flow partner;

	if (claim == CLAIM_FORGOTTEN)
		return connection_closed(reply) && !connection_is_remembered(reply) &&
		       connection_idle(reply, now) > LINGER_MS * NS_PER_MS;
	if (claim == CLAIM_URGENT && ((connection_closed(reply) && !attempt_is_kept(reply)) ||
				      handshake_overdue(key, reply, now)))
		return true;
	if (connection_idle(reply, now) <= limit)
		return false;
	if (connection_closed(reply))
		return true;
	if (reply->established)
		return false;
	forward = partner_find(&partner, key, reply);
	return !forward || (claim != CLAIM_OVER && connection_idle(forward, now) > limit);
}

/* True if an entry is what another packet of the same connection has written at the same time. */
static inline bool reply_is_twin(const struct connection *existing, const struct connection *reply)
{
	return existing->created == reply->created && existing->reply &&
	       existing->after.source_port == reply->after.source_port &&
	       existing->after.destination_port == reply->after.destination_port &&
	       address_equal(&existing->after.source, &reply->after.source) &&
	       address_equal(&existing->after.destination, &reply->after.destination);
}

/*
 * Take `key` for `reply` unless a live connection has it, or one that `claim` does not reach. Else
 * -EEXIST, or another error when there is no room for it.
 */
static inline int reply_take(struct flow *key, struct connection *reply, enum port_claim claim)
{
	struct connection *existing = connection_find(key);

	if (existing) {
		if (!reply_abandoned(key, existing, claim))
			return -EEXIST;
		connection_remove(key, existing);
	}
	return connection_take(key, reply);
}

/*
 * Make `routed` (client -> backend, between the hooks) unique, by another source port if necessary,
 * and take the key of its replies. When several ports are in use, ports of flows that have just
 * ended are taken, the packet's own port first. -EAGAIN: no port was free in this round. After
 * another error the packet must be dropped.
 */
static inline int routed_flow_take(const struct settings *settings, struct port_search *search,
				   struct flow *routed, struct connection *reply)
{
	bool urgent = search->round >= SOURCE_PORT_URGENT;
	bool own = !search->round || search->round == SOURCE_PORT_URGENT;
	struct flow key;

	if (!search->round)
		*search = port_search_begin(bpf_get_prandom_u32());
#pragma clang loop unroll(disable)
	for (int i = 0; i < PORT_TRIES; i++) {
		int error = -EEXIST;

		if (i || !own)
			routed->source_port = port_search_next(search, settings);
		flow_reverse(&key, routed, HOOK_EGRESS);
		if (!direct_flow_exists(settings, routed, urgent) &&
		    !fast_flow_exists(settings, routed, urgent) && !netfilter_flow_exists(routed))
			error = reply_take(&key, reply, urgent ? CLAIM_URGENT : CLAIM_OVER);
		if (error && error != -EEXIST)
			count_no_room(error);
		if (error != -EEXIST)
			return error;
	}
	search->round++;
	if (search->round < SOURCE_PORT_ROUNDS)
		return -EAGAIN;
	COUNT(dropped__source_ports_exhausted);
	return -ENOSPC;
}

/* True if a socket of this node would receive `reply`. */
static inline bool socket_expects(struct __sk_buff *skb, const struct flow *reply)
{
	struct bpf_sock *socket = socket_find(skb, reply);

	if (!socket)
		return false;
	bpf_sk_release(socket);
	return true;
}

/*
 * Take a port. `key` is the key of the replies. -EEXIST if the port is in use, or if its connection
 * is not claimed by the search yet.
 */
static inline int masquerade_port_try(struct __sk_buff *skb, struct flow *wire, struct flow *key,
				      struct connection *reply, const struct port_search *search)
{
	struct connection *existing = connection_find(key);
	int error;

	if (existing && !reply_abandoned(key, existing, search->claim))
		return reply_is_twin(existing, reply) ? 0 : -EEXIST;
	if (netfilter_flow_exists(wire) || socket_expects(skb, key))
		return -EEXIST;
	if (existing)
		connection_remove(key, existing);
	error = connection_take(key, reply);
	if (error != -EEXIST)
		return error;
	existing = connection_find(key);
	return existing && reply_is_twin(existing, reply) ? 0 : -EEXIST;
}

/*
 * Choose a source port for `wire` (node -> backend) that is unique for its addresses, and take the
 * key of its replies. The further the search goes, the more it claims, and then begins again with
 * the port that was not used for longest. -EAGAIN: none was free in this round. -EEXIST: in none.
 */
static inline int masquerade_port_take(struct __sk_buff *skb, const struct settings *settings,
				       struct port_search *search, struct flow *wire,
				       struct connection *reply)
{
	struct flow key;

#pragma clang loop unroll(disable)
	for (int i = 0; i < PORT_TRIES; i++) {
		int error;

		wire->source_port = port_search_next(search, settings);
		flow_reverse(&key, wire, HOOK_INGRESS);
		error = masquerade_port_try(skb, wire, &key, reply, search);
		if (error && error != -EEXIST)
			count_no_room(error);
		if (error != -EEXIST)
			return error;
	}
	search->round++;
	if (!search->shortage &&
	    (search->round == CLOSED_FROM_ROUND || search->round == URGENT_FROM_ROUND)) {
		search->number = search->first - search->stride;
		search->claim++;
	}
	if (search->round == (search->shortage ? MASQUERADE_ROUNDS : URGENT_FROM_ROUND))
		port_shortage_note(wire, search->shortage + 1); /* one worse than was known */
	return search->round < MASQUERADE_ROUNDS ? -EAGAIN : -EEXIST;
}
