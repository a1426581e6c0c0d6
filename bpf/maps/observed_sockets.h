/*
 * TCP sockets whose connect() was translated and told while somebody observed (maps/events.h), until
 * their end is told. Such a socket has its place in `peer_names`, with PEER_OBSERVED.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

enum { OBSERVED_SOCKETS = 32768 }; /* as many as have a place */

struct observed_socket {
	__u64 since; /* ns, CLOCK_MONOTONIC */
	struct address client;
	__be16 client_port; /* 0 until the kernel has chosen it */
	__u16 zero;
	__u32 service;
};

/* By the cookie of the socket. */
MAP("hash", __u64, struct observed_socket, observed_sockets, OBSERVED_SOCKETS, BPF_F_NO_PREALLOC);
