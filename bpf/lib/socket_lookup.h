/* Sockets of the network namespace that a program runs in, by the packets they would receive. */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/wire.h"

/*
 * Find the socket that would receive `flow`; it must be released. NULL if there is none, or if no
 * helper knows sockets of the protocol.
 */
static inline struct bpf_sock *socket_find(void *context, const struct flow *flow)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size;

	if (address_is_v4(&flow->destination)) {
		tuple.ipv4.saddr = flow->source.words[3];
		tuple.ipv4.daddr = flow->destination.words[3];
		tuple.ipv4.sport = flow->source_port;
		tuple.ipv4.dport = flow->destination_port;
		size = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &flow->source, 16);
		__builtin_memcpy(tuple.ipv6.daddr, &flow->destination, 16);
		tuple.ipv6.sport = flow->source_port;
		tuple.ipv6.dport = flow->destination_port;
		size = sizeof(tuple.ipv6);
	}
	if (flow->protocol == PROTO_TCP)
		return bpf_sk_lookup_tcp(context, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (flow->protocol == PROTO_UDP)
		return bpf_sk_lookup_udp(context, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	return NULL;
}
