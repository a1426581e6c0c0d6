/*
 * Listeners that the node has at the address of a Service, as NodeLocal DNSCache has: it binds the
 * cluster IP of the cluster's DNS on each node, and answers there in its place. (Beside kube-proxy
 * it does so by rules of netfilter, which these programs do not see.) They win over the Service.
 * One that is bound to all addresses does not.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/socket_lookup.h"
#include "maps/frontends.h"
#include "maps/node_addresses.h"

/* True for a cluster IP that this node has on an interface. */
static inline bool cluster_ip_is_held(const struct address *address)
{
	struct address own = *address;

	return node_addresses.lookup(&own) && frontend_rest(address);
}

/* True if a socket in this network namespace is bound to the destination of `flow`. */
static inline bool node_listens(void *context, const struct flow *flow)
{
	struct bpf_sock *socket = socket_find(context, flow);
	struct address bound;
	__be32 bound_v4;

	if (!socket)
		return false;
	/* Read both: the verifier wants each read by itself, and the compiler would join them. */
	bound_v4 = socket->src_ip4;
	bound.words[0] = socket->src_ip6[0];
	bound.words[1] = socket->src_ip6[1];
	bound.words[2] = socket->src_ip6[2];
	bound.words[3] = socket->src_ip6[3];
	bpf_sk_release(socket);
	if (address_is_v4(&flow->destination))
		return bound_v4 == flow->destination.words[3];
	return address_equal(&bound, &flow->destination);
}
