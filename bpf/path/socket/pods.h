/*
 * Calls of pods that are left to tc: of a namespace that is not known yet; those to be masqueraded,
 * also of a pod to itself; those to be refused or dropped; and connected UDP, which could not be
 * sent to another backend later.
 */
#pragma once

#include "lib/address.h"
#include "lib/socket_helpers.h"
#include "lib/wire.h"
#include "maps/frontends.h"
#include "maps/pod_netns.h"
#include "maps/settings.h"
#include "maps/socket_storage.h"
#include "path/pod_netns.h"
#include "path/socket/call.h"

/*
 * Leave a call of a pod to tc. A UDP socket is left to tc from then on: tc knows its flow, and one
 * backend serves it. `cookie`: of the namespace that the next packet of this socket is to
 * identify, or 0.
 */
static inline void socket_leave_to_tc(struct bpf_sock_addr *context, bool connect, __u64 cookie)
{
	struct socket_translations *known;

	if (connect && !cookie)
		return;
	known = socket_translations.sk_storage_get(call_socket(context), 0,
						   BPF_SK_STORAGE_GET_F_CREATE);
	if (known) {
		known->by_packets = 1;
		known->netns_cookie = cookie;
	}
}

/* True if tc handles this kind of call of a pod, whatever is known of the pod. */
static inline bool pod_call_is_left_to_tc(struct bpf_sock_addr *context,
					  const struct frontend_key *asked, bool connect)
{
	const __be32 *words = asked->address.words;

	/* Loopback is the pod's own. */
	if (!(words[0] | words[1] | words[2]) ||
	    !(family_offset(&asked->address) |
	      (words[3] & bpf_htonl(0xff000000)) ^ bpf_htonl(0x7f000000)))
		return true;
	if (asked->protocol != PROTO_TCP && (connect || asked->protocol != PROTO_UDP))
		return true;
	/* Two frontends may send one port to one backend: only tc can change the port of one. */
	if (connect && call_socket(context)->src_port)
		return true;
	/* Packets of such sockets may be routed in another way than packets of the namespace. */
	return call_socket(context)->bound_dev_if || call_socket(context)->mark;
}

/* Leave a call to tc, if it is to a frontend, because its namespace is not known well enough. */
static inline void pod_unknown(struct bpf_sock_addr *context, bool connect, __u64 cookie,
			       const struct netns *netns, const struct frontend_key *asked,
			       bool learn)
{
	struct frontend_key key = *asked;

	if (!frontend_find(&key))
		return;
	if (!netns)
		namespace_add(cookie);
	socket_leave_to_tc(context, connect, learn ? cookie : 0);
}

/*
 * Find the client of a pod's call, and return the source that the namespace's packets have. NULL if
 * the call is left to tc. `bound`: the socket has a source address, in `call->client`.
 */
static inline struct netns_source *pod_client(struct bpf_sock_addr *context, bool connect,
					      const struct settings *settings,
					      struct socket_call *call,
					      const struct socket_translations *known, bool bound)
{
	struct netns_source *pod;
	struct netns *netns;
	__u32 state;
	__u64 now;

	if (settings->socket_lb != SOCKET_LB_ALL ||
	    pod_call_is_left_to_tc(context, &call->asked, connect) ||
	    (!connect && udp_is_connected(context)))
		return NULL;
	if (!connect && known && (known->by_packets || known->next >= SOCKET_TRANSLATIONS))
		return NULL;
	netns = namespaces.lookup(&call->cookie);
	/* Other sockets of the namespace need not use the address that this one is bound to. */
	if (!netns) {
		pod_unknown(context, connect, call->cookie, netns, &call->asked, !bound);
		return NULL;
	}
	pod = netns_source_of(netns, &call->asked.address);
	state = pod->state;
	now = bpf_ktime_get_coarse_ns();
	if (state == SOURCE_UNSURE)
		return NULL;
	if (state == SOURCE_UNKNOWN || (state == SOURCE_TRIED && !trial_is_over(pod, now))) {
		pod_unknown(context, connect, call->cookie, netns, &call->asked,
			    state == SOURCE_UNKNOWN && !bound);
		return NULL;
	}
	if ((__s64)(now - netns->checked) >= NS_PER_SECOND) {
		netns->checked = now;
		netns_check(context, settings, netns);
	}
	if (netns->left_alone || (bound && !address_equal(&call->client.address, &pod->address)) ||
	    address_equal(&call->asked.address, &pod->address))
		return NULL;
	call->client.address = pod->address;
	call->client.class = pod->class;
	return pod;
}

/*
 * Note a pod's translation, and whether its first packet has to prove the source of the namespace.
 * False if the call is left to tc: no note can be made, or the pod is its own backend.
 */
static inline bool pod_commit(struct netns_source *pod, const struct socket_call *call,
			      struct socket_translations *known)
{
	if (!known)
		return false;
	if (address_equal(&call->client.address, &call->choice.backend.address)) {
		known->by_packets = 1;
		known->asked = call->asked;
		known->itself = call->choice.backend;
		return false;
	}
	if (pod->state != SOURCE_PROVEN) {
		pod->tried = bpf_ktime_get_coarse_ns();
		pod->trials++;
		pod->state = SOURCE_TRIED;
		pod->due = 1;
	}
	if (pod->due) {
		pod->due = 0;
		known->netns_cookie = call->cookie;
	}
	return true;
}

/*
 * True if a connection of a pod has nothing to remember but its frontend. Of MPTCP, this is the
 * socket of a path, and getpeername() asks another one.
 */
static inline bool pod_needs_name_only(struct bpf_sock_addr *context,
				       const struct netns_source *pod,
				       const struct socket_call *call)
{
	return pod->state == SOURCE_PROVEN && !pod->due &&
	       !address_equal(&call->client.address, &call->choice.backend.address) &&
	       !skc_to_mptcp_sock(call_socket(context));
}
