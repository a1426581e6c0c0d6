/*
 * The socket LB: calls of sockets are translated when they connect or send, so that no packet has
 * to be. A call is left alone if the result would differ from what tc does with the packets. Then
 * tc translates them.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/socket_helpers.h"
#include "lib/wire.h"
#include "maps/backends.h"
#include "maps/bound_sockets.h"
#include "maps/echo_addresses.h"
#include "maps/frontends.h"
#include "maps/node_addresses.h"
#include "maps/peer_names.h"
#include "maps/pod_netns.h"
#include "maps/quarantined.h"
#include "maps/settings.h"
#include "maps/socket_storage.h"
#include "maps/udp_sockets.h"
#include "path/first/local_listener.h"
#include "path/schedule/backend_select.h"
#include "path/schedule/choose.h"
#include "path/socket/attempts.h"
#include "path/socket/call.h"
#include "path/socket/counts.h"
#include "path/socket/observe.h"
#include "path/socket/observe_connected.h"
#include "path/socket/pods.h"
#include "path/socket/translations.h"

#define ECONNREFUSED 111
#define EHOSTUNREACH 113

#define DRAWS 4 /* of a backend for a socket that is bound to a port */
#define PING_PORT 1025

static inline struct bound_key bound_key_of(struct bpf_sock_addr *context,
					    const struct socket_call *call)
{
	struct bound_key key = {};

	key.backend.address = call->choice.backend.address;
	key.backend.port = call->choice.backend.port;
	key.backend.protocol = PROTO_TCP;
	key.port = call_socket(context)->src_port;
	return key;
}

static inline bool connects_bound(struct bpf_sock_addr *context, const struct socket_call *call)
{
	return call->asked.protocol == PROTO_TCP && call_socket(context)->src_port;
}

/*
 * True if a bound port cannot be connected to the chosen backend, because another socket of the
 * node has exactly that connection through another frontend.
 */
static inline bool bound_port_is_taken(struct bpf_sock_addr *context,
				       const struct socket_call *call)
{
	struct bound_key key = bound_key_of(context, call);
	__u64 *holder = bound_sockets.lookup(&key);

	return holder && *holder != socket_cookie(context);
}

/*
 * From a loopback address there is no route to a backend on another interface, so a socket that is
 * bound to one gets an address by the route after all. The kernel allows that to a socket without a
 * port (IP_BIND_ADDRESS_NO_PORT); the others fail at connect().
 */
static inline void socket_leave_loopback(struct bpf_sock_addr *context, bool v4,
					 const struct socket_call *call)
{
	struct any_address any = {.family = v4 ? AF_INET : AF_INET6};

	if (!call_socket(context)->src_port && address_is_loopback(&call->client.address))
		bpf_bind((void *)context, &any, v4 ? SOCKADDR_V4 : sizeof(any));
}

/*
 * True if tc drops the SYN of this call where it leaves (first/local_opening.h). A SYN to an
 * address of the node itself leaves by no interface.
 */
static inline bool call_is_dropped_by_tc(const struct socket_call *call, bool connect)
{
	struct address to = call->asked.address;

	return connect && call->asked.protocol == PROTO_TCP && !address_is_v4_loopback(&to) &&
	       !node_addresses.lookup(&to);
}

/*
 * True for a connect() of a ping that prepares to send echo requests to an address that answers
 * them: iputils' ping connects to UDP port 1025, to learn its own address.
 */
static inline bool call_is_of_ping(const struct socket_call *call, bool connect)
{
	if (!connect || call->asked.protocol == PROTO_TCP || call->asked.protocol == PROTO_SCTP ||
	    (call->asked.protocol == PROTO_UDP && call->asked.port != bpf_htons(PING_PORT)))
		return false;
	return echo_address_has(&call->asked.address);
}

/*
 * True if tc refuses the SYN of this call where it leaves, or the kernel does at an address of the
 * node.
 */
static inline bool call_is_refused_by_packet(const struct socket_call *call, int verdict,
					     bool connect)
{
	return connect && call->asked.protocol == PROTO_TCP &&
	       refusal_reason(&call->choice, verdict) == EVENT_REASON_NO_ENDPOINTS;
}

/* Refuse a call of the node, or let it go on to where silence is the answer. */
static inline int socket_refuse(struct socket_call *call, int verdict, bool connect)
{
	if (verdict == VERDICT_REJECT && call_is_of_ping(call, connect))
		return 1;
	if (verdict != VERDICT_REJECT && call_is_dropped_by_tc(call, connect))
		return 1;
	/* Before Linux 5.18 the call says EPERM, as with kube-proxy, unless a packet says it better. */
	if (bpf_set_retval(verdict == VERDICT_REJECT ? -ECONNREFUSED : -EHOSTUNREACH) &&
	    call_is_refused_by_packet(call, verdict, connect))
		return 1;
	choice_refused(&call->choice, verdict);
	observe_call(call, refusal_kind(verdict), refusal_reason(&call->choice, verdict));
	return 0;
}

/*
 * The destination is not a frontend. If it is a backend this socket already uses through one,
 * replies keep the backend's address.
 */
static inline int socket_leave(struct bpf_sock_addr *context, struct socket_translations *known,
			       struct socket_call *call, bool connect)
{
	if (!known)
		return 1;
	if (connect) {
		if (call->asked.protocol == PROTO_UDP)
			udp_socket_forget(context);
		return 1;
	}
	call->choice.backend.address = call->asked.address;
	call->choice.backend.port = call->asked.port;
	/*
	 * (The kernel asks for each datagram of a connected IPv6 socket if the peer's address is
	 * v4-mapped.)
	 */
	if (!udp_is_connected(context) && socket_shares(context, known, call)) {
		if (!known->calls)
			known->calls = 1;
		socket_remember(context, known, call, true);
	}
	return 1;
}

/*
 * Note what a TCP socket is about to be connected to. Of MPTCP, the hook sees the first path, and
 * getpeername() asks the socket itself. So that has to know; how its paths end is not noted,
 * because they outlive it. `stored`: the socket has storage, and is not in `peer_names` yet.
 */
static inline void tcp_note(struct bpf_sock_addr *context, const struct socket_call *call,
			    bool stored)
{
	void *mptcp = skc_to_mptcp_sock(call_socket(context));
	struct socket_translations *known;

	if (!mptcp) {
		socket_attempt_begin(context, &call->choice);
		if (stored)
			peer_name_note(socket_cookie(context), &call->asked, &call->choice.backend);
		return;
	}
	known = socket_translations.sk_storage_get(mptcp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (known)
		translation_write(&known->rows[0], &call->asked, &call->choice);
}

/* Note what connect() of the node leaves behind outside of its socket. */
static inline void connect_note(struct bpf_sock_addr *context, const struct socket_call *call)
{
	if (call->asked.protocol == PROTO_UDP)
		udp_socket_note(context, &call->asked, &call->choice.backend);
	if (connects_bound(context, call)) {
		struct bound_key key = bound_key_of(context, call);
		__u64 cookie = socket_cookie(context);

		bound_sockets.update(&key, &cookie);
	}
}

/* Send a call to the backend that was chosen, and remember that for the socket. */
static inline int socket_translate(struct bpf_sock_addr *context, bool v4, bool connect,
				   struct socket_call *call, struct socket_translations *known)
{
	if (known)
		socket_remember(context, known, call, false);
	choice_made(&call->choice, &call->client);
	if (connect && call->choice.counts)
		socket_count(context, call);
	if (connect && call->asked.protocol == PROTO_TCP)
		tcp_note(context, call, known);
	if (observe_call(call, EVENT_MADE, EVENT_REASON_NONE) && connect)
		observe_connecting(socket_cookie(context), call);
	socket_set_address(context, v4, &call->choice.backend.address, call->choice.backend.port);
	return 1;
}

/* Choose where a call of a pod goes, and send it there, or leave it to tc. */
static inline int pod_decide(struct bpf_sock_addr *context, bool v4, bool connect,
			     struct socket_translations *known, struct socket_call *call,
			     struct netns_source *pod)
{
	int verdict;

	call->chooser = CHOOSER_POD_SOCKET;
	verdict = choose((struct choosing *)&call->asked);
	if (verdict == VERDICT_NONE)
		return socket_leave(context, known, call, connect);
	if (verdict != VERDICT_DNAT && verdict != VERDICT_BY_TC)
		return 1;
	/* tc sees whether the node has a listener there, and can change the source port. */
	if (verdict == VERDICT_BY_TC || call->choice.masquerade ||
	    cluster_ip_is_held(&call->asked.address) ||
	    (!connect && known && socket_shares(context, known, call))) {
		socket_leave_to_tc(context, connect, 0);
		return 1;
	}
	/* (connect() of a pod is of TCP here.) */
	if (connect && !known && pod_needs_name_only(context, pod, call) &&
	    peer_name_note(socket_cookie(context), &call->asked, &call->choice.backend))
		return socket_translate(context, v4, connect, call, NULL);
	known = socket_translations.sk_storage_get(call_socket(context), 0,
						   BPF_SK_STORAGE_GET_F_CREATE);
	if (!pod_commit(pod, call, known))
		return 1;
	return socket_translate(context, v4, connect, call, known);
}

/* True if a call of the node is for a listener that it has itself at a cluster IP. */
static inline bool call_is_for_listener(struct bpf_sock_addr *context,
					const struct socket_call *call)
{
	struct flow flow = {};

	if (!cluster_ip_is_held(&call->asked.address))
		return false;
	flow.destination = call->asked.address;
	flow.destination_port = call->asked.port;
	flow.protocol = call->asked.protocol;
	return node_listens(context, &flow);
}

/*
 * Send this socket to a backend on trial, unless another connection is probing it. Not for MPTCP:
 * its connect result is not recorded.
 */
static inline void socket_try(struct bpf_sock_addr *context, struct socket_call *call)
{
	struct choice before = call->choice;

	if (skc_to_mptcp_sock(call_socket(context)))
		return;
	call->chooser = CHOOSER_TRIAL;
	choose((struct choosing *)&call->asked);
	if (!connects_bound(context, call) || !bound_port_is_taken(context, call))
		return;
	if (call->choice.watched == WATCHED_TRIAL)
		trial_release(call->choice.backend.counters, bpf_ktime_get_coarse_ns());
	call->choice = before;
}

/* Choose where a call of the node goes, and send it there, or refuse it. */
static inline int node_decide(struct bpf_sock_addr *context, bool v4, bool connect,
			      struct socket_translations *known, struct socket_call *call)
{
	int verdict;

	call->chooser = CHOOSER_NODE_SOCKET | CHOOSER_UNDECIDED;
	verdict = choose((struct choosing *)&call->asked);
	if (verdict == VERDICT_SCHEDULE) {
		decide_spill((struct choosing *)&call->asked);
		call->chooser = CHOOSER_NODE_SOCKET;
		verdict = choose((struct choosing *)&call->asked);
	}
	if (verdict == VERDICT_NONE || call_is_for_listener(context, call))
		return socket_leave(context, known, call, connect);
	if (verdict != VERDICT_DNAT)
		goto refuse;
	if (connect && connects_bound(context, call)) {
		struct frontend_key key = call->asked;
		__u32 first = bpf_get_prandom_u32();

		loopback_normalize(&key.address);
#pragma clang loop unroll(disable)
		for (int draw = 0; draw < DRAWS && bound_port_is_taken(context, call); draw++)
			choose_again(&key, &call->client, &call->choice, first + draw);
	}
	if (connect && call->choice.watched == WATCHED_MAY_TRY)
		socket_try(context, call);
	if (call->choice.counts == CHOICE_LIMITED) {
		call->chooser = CHOOSER_ROOM;
		verdict = choose((struct choosing *)&call->asked);
		if (verdict != VERDICT_DNAT)
			goto refuse;
	}
	known = socket_translations.sk_storage_get(call_socket(context), 0,
						   BPF_SK_STORAGE_GET_F_CREATE);
	if (known && !connect && !known->calls && socket_shares(context, known, call))
		known->calls = 1;
	if (connect) {
		socket_leave_loopback(context, v4, call);
		connect_note(context, call);
	}
	return socket_translate(context, v4, connect, call, known);
refuse:
	return socket_refuse(call, verdict, connect);
}

/* connect and sendmsg: replace a frontend by a backend. */
static inline int socket_forward(struct bpf_sock_addr *context, bool v4, bool connect)
{
	struct settings *settings = settings_get();
	struct socket_translations *known;
	struct socket_call call = {};
	struct netns_source *pod = NULL;
	bool bound;

	if (!settings || settings->socket_lb == SOCKET_LB_OFF)
		return 1;
	call.cookie = bpf_get_netns_cookie(context);
	call.asked.protocol = context->protocol;
	call.asked.port = (__be16)context->user_port;
	socket_address(context, v4, &call.asked.address);
	if (connect && call.asked.protocol == PROTO_TCP)
		peer_name_end(socket_cookie(context));
	unspecified_to_loopback(&call.asked.address);
	known = socket_translations.sk_storage_get(call_socket(context), 0, 0);
	if (known && connect) {
		socket_forget(known);
		socket_uncount(context);
	} else if (known && socket_reuse(context, v4, settings, &call, known))
		return 1;
	bound = socket_bound(context, v4, connect, &call.client.address);
	if (call.cookie != settings->netns_cookie) {
		pod = pod_client(context, connect, settings, &call, known, bound);
		return pod ? pod_decide(context, v4, connect, known, &call, pod) : 1;
	}
	call.client.class = CLIENT_NODE;
	call.client.port = bpf_htons(call_socket(context)->src_port);
	if (!bound)
		call.client.address = *(&settings->node_v4 + family_offset(&call.asked.address));
	return node_decide(context, v4, connect, known, &call);
}
