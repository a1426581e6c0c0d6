/*
 * Network namespaces of pods: what tc learns from packets, for calls of sockets that have sent none
 * yet.
 *
 * tc decides by the interface where a packet comes in, and by its source address. A socket that
 * connects has neither. So the first calls of a namespace to frontends are left to tc, and their
 * packets teach both: while a packet passes a veth, it still has its socket, and the socket has its
 * namespace. Then one call is translated as a trial. Further calls are translated only after the
 * packet of the trial came in as expected. From then on one call per second is checked in the same
 * way. A namespace is left to tc if its packets come in by several interfaces or addresses, or if
 * they do not pass here.
 */
#pragma once

#include "lib/address.h"
#include "maps/pod_netns.h"
#include "maps/settings.h"
#include "maps/socket_optouts.h"
#include "maps/socket_storage.h"
#include "path/client.h"
#include "path/packet.h"

/* The first trial waits twice this time for its packet; each later trial waits twice as long again. */
#define TRIAL_NS (60 * NS_PER_SECOND)

/* Find out the class of clients from there. True if their address opted out. */
static inline bool source_check(const struct settings *settings, struct netns_source *from)
{
	if (from->state == SOURCE_UNKNOWN)
		return false;
	from->due = 1;
	from->class = client_class(settings, from->ifindex, &from->address);
	return socket_optouts.lookup(&from->address);
}

static inline bool port_has_listener(struct bpf_sock_addr *context, struct bpf_sock_tuple *tuple,
				     __u32 size)
{
	struct bpf_sock *socket = bpf_sk_lookup_tcp(context, tuple, size, BPF_F_CURRENT_NETNS, 0);

	if (!socket)
		return false;
	bpf_sk_release(socket);
	return true;
}

/*
 * Find out the class of a namespace's clients, and whether they are to be left alone: because an
 * address opted out, or because the proxy of a service mesh in the pod takes its calls and has to
 * see the frontend. Results are written into the map at once: the verifier would follow the values
 * of a variable through all code that comes later.
 */
static inline void netns_check(struct bpf_sock_addr *context, const struct settings *settings,
			       struct netns *entry)
{
	entry->found = source_check(settings, &entry->v4);
	if (source_check(settings, &entry->v6))
		entry->found = 1;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 4; i++) {
		__be16 port = bpf_htons(settings->mesh_ports[i]);
		struct bpf_sock_tuple tuple = {};

		if (!port)
			continue;
		tuple.ipv4.daddr = bpf_htonl(0x7f000001);
		tuple.ipv4.dport = port;
		if (port_has_listener(context, &tuple, sizeof(tuple.ipv4)))
			entry->found = 1;
		__builtin_memset(&tuple, 0, sizeof(tuple));
		tuple.ipv6.daddr[3] = bpf_htonl(1);
		tuple.ipv6.dport = port;
		if (port_has_listener(context, &tuple, sizeof(tuple.ipv6)))
			entry->found = 1;
	}
	entry->left_alone = entry->found;
}

static inline bool trial_is_over(const struct netns_source *from, __u64 now)
{
	return (__s64)(now - from->tried) >= TRIAL_NS << (from->trials & 15);
}

static inline void source_learn(struct netns *entry, struct netns_source *from,
				const struct address *source, __u32 ifindex, bool translated)
{
	if (from->state == SOURCE_UNKNOWN) {
		from->address = *source;
		from->ifindex = ifindex;
		entry->checked = 0; /* check it: this address may have opted out */
		asm volatile("" ::: "memory");
		from->state = SOURCE_LEARNED;
	} else if (from->ifindex != ifindex || !address_equal(&from->address, source)) {
		from->state = SOURCE_UNSURE;
	} else if (from->state == SOURCE_TRIED && translated) {
		from->state = SOURCE_PROVEN;
	}
}

/*
 * Learn from a first packet, if it is of a pod's socket, where packets of the pod's namespace come
 * from. If the pod is its own backend, use the backend that was chosen for the socket.
 * `translated`: the socket was translated, and the packet goes to a backend.
 */
static inline void netns_learn(struct __sk_buff *skb, struct packet *packet, bool translated)
{
	struct bpf_sock *socket = skb->sk;
	struct socket_translations *known;
	struct netns *entry;
	__u64 cookie;

	if (!socket)
		return;
	known = socket_translations.sk_storage_get(socket, 0, 0);
	if (!known)
		return;
	if (!translated && known->itself.port &&
	    known->asked.port == packet->flow.destination_port &&
	    address_equal(&known->asked.address, &packet->flow.destination)) {
		packet->first.choice.backend = known->itself;
		known->itself.port = 0;
	}
	cookie = known->netns_cookie;
	if (!cookie)
		return;
	known->netns_cookie = 0;
	entry = namespaces.lookup(&cookie);
	if (entry)
		source_learn(entry, packet->v4 ? &entry->v4 : &entry->v6, &packet->flow.source,
			     skb->ifindex, translated);
}
