/* A call of connect(), sendmsg(), recvmsg() or getpeername(): its addresses, and what is known. */
#pragma once

#include "lib/address.h"
#include "path/schedule/backend_select.h"
#include "path/schedule/choose.h"

/* sockaddr_in6 of the unspecified address and no port; its beginning is a sockaddr_in. */
struct any_address {
	__u16 family;
	__u8 zero[26];
};

#define SOCKADDR_V4 16 /* bytes of a sockaddr_in */

#define SOCKET_CONNECTED 1 /* state of a connected UDP socket: TCP_ESTABLISHED */

/* A call of connect() or sendmsg(), as far as it is known. */
struct socket_call {
	__u64 cookie;	 /* of its network namespace */
	struct choosing; /* where it wants to send, who sends, and where it will send */
};

/*
 * Return the socket of a call. (Without the barrier, the compiler adds the offset of `sk` to the
 * context once for several readings, and the verifier refuses to read by that.)
 */
static inline struct bpf_sock *call_socket(struct bpf_sock_addr *context)
{
	asm volatile("" : "+r"(context));
	return context->sk;
}

static inline void socket_address(struct bpf_sock_addr *context, bool v4, struct address *address)
{
	if (v4) {
		address_from_v4(address, context->user_ip4);
	} else {
		address->words[0] = context->user_ip6[0];
		address->words[1] = context->user_ip6[1];
		address->words[2] = context->user_ip6[2];
		address->words[3] = context->user_ip6[3];
	}
}

static inline void socket_set_address(struct bpf_sock_addr *context, bool v4,
				      const struct address *address, __be16 port)
{
	if (v4) {
		context->user_ip4 = address->words[3];
	} else {
		context->user_ip6[0] = address->words[0];
		context->user_ip6[1] = address->words[1];
		context->user_ip6[2] = address->words[2];
		context->user_ip6[3] = address->words[3];
	}
	context->user_port = port;
}

/*
 * Replace the unspecified address by 127.0.0.1 or ::1, for which connect(2) takes it. It must not be
 * looked up: NodePorts have the unspecified addresses in the map.
 */
static inline void unspecified_to_loopback(struct address *address)
{
	if (address->words[3])
		return;
	if (address_is_v4(address))
		address->words[3] = bpf_htonl(0x7f000001);
	else if (address_is_zero(address))
		address->words[3] = bpf_htonl(1);
}

/* Read the address that the socket is bound to. False if the kernel will choose one. */
static inline bool socket_bound(struct bpf_sock_addr *context, bool v4, bool connect,
				struct address *address)
{
	if (v4) {
		__be32 bound = connect ? call_socket(context)->src_ip4 : context->msg_src_ip4;

		address_from_v4(address, bound);
		return bound;
	}
	if (connect) {
		address->words[0] = call_socket(context)->src_ip6[0];
		address->words[1] = call_socket(context)->src_ip6[1];
		address->words[2] = call_socket(context)->src_ip6[2];
		address->words[3] = call_socket(context)->src_ip6[3];
	} else {
		address->words[0] = context->msg_src_ip6[0];
		address->words[1] = context->msg_src_ip6[1];
		address->words[2] = context->msg_src_ip6[2];
		address->words[3] = context->msg_src_ip6[3];
	}
	return !address_is_zero(address);
}

static inline bool udp_is_connected(struct bpf_sock_addr *context)
{
	return call_socket(context)->state == SOCKET_CONNECTED;
}
