/*
 * How attempts of sockets to connect end: answered, refused, or not answered to the first SYN. A
 * process that gives up by itself says nothing about the backend.
 */
#pragma once

#include "maps/backend_outcomes.h"
#include "maps/backends.h"
#include "maps/socket_loads.h"
#include "path/socket/call.h"

/* Note what a socket attempts, if the Service wants to know how that ends. */
static inline void socket_attempt_begin(struct bpf_sock_addr *context, const struct choice *choice)
{
	struct socket_load *attempt;

	if (!choice->watched)
		return;
	attempt = socket_loads.sk_storage_get(call_socket(context), 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!attempt)
		return;
	attempt->attempt = choice->backend.counters;
	attempt->trial = choice->watched == WATCHED_TRIAL ? second_now() : 0;
}

/* True if a socket that was connecting has been closed by the kernel. */
static inline bool attempt_is_refused(const struct bpf_sock_ops *context)
{
	return context->op == BPF_SOCK_OPS_STATE_CB && context->args[0] == BPF_TCP_SYN_SENT &&
	       context->args[1] == BPF_TCP_CLOSE;
}

/* True if a SYN has to be sent again. */
static inline bool attempt_is_unanswered(const struct bpf_sock_ops *context)
{
	return context->op == BPF_SOCK_OPS_RTO_CB && context->state == BPF_TCP_SYN_SENT;
}

/* A trial that has failed is ended by the agent: until then, no other socket tries the backend. */
static inline void socket_attempt_end(struct socket_load *known, __u32 failures, __u32 successes)
{
	outcome_note(known->attempt, failures, successes);
	if (successes)
		socket_trial_release(known);
	socket_attempt_forget(known);
}

/* Something happens to a TCP socket. */
static inline int socket_attempt_follow(struct bpf_sock_ops *context)
{
	struct socket_load *known;
	__u32 op = context->op;
	struct bpf_sock *socket;

	if (op != BPF_SOCK_OPS_TCP_CONNECT_CB && op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    op != BPF_SOCK_OPS_RTO_CB && op != BPF_SOCK_OPS_STATE_CB)
		return 1;
	socket = context->sk;
	if (!socket)
		return 1;
	known = socket_loads.sk_storage_get(socket, 0, 0);
	if (!known || !known->attempt)
		return 1;
	if (op == BPF_SOCK_OPS_TCP_CONNECT_CB)
		bpf_sock_ops_cb_flags_set(context, context->bpf_sock_ops_cb_flags |
							   BPF_SOCK_OPS_RTO_CB_FLAG |
							   BPF_SOCK_OPS_STATE_CB_FLAG);
	else if (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		socket_attempt_end(known, 0, 1);
	else if (attempt_is_refused(context) || attempt_is_unanswered(context))
		socket_attempt_end(known, 1, 0);
	return 1;
}
