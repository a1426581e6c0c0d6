/* Addresses of this node, and where it accepts NodePorts. */
#pragma once

#include "lib/address.h"
#include "lib/map.h"
#include "lib/verifier.h"

enum nodeports {
	NODEPORTS_SHUT,
	NODEPORTS_OPEN,
	NODEPORTS_OPEN_LOOPBACK, /* of 127.0.0.1: accepted at every address of 127/8 */
};

struct node_address {
	__u8 nodeports; /* of enum nodeports */
	__u8 zero[3];
};

MAP("hash", struct address, struct node_address, node_addresses, MAX_NODE_ADDRESSES,
    BPF_F_NO_PREALLOC);

/* Replace an address of 127/8 by 127.0.0.1, if the entry of that is for all of them. */
static inline void loopback_normalize(struct address *address)
{
	struct address only = {};
	struct node_address *entry;
	__u32 closed;

	if (!address_is_v4_loopback(address))
		return;
	address_from_v4(&only, bpf_htonl(0x7f000001));
	entry = node_addresses.lookup(&only);
	if (!entry)
		return;
	closed = not_zero(entry->nodeports ^ NODEPORTS_OPEN_LOOPBACK);
	/*
	 * Without a branch: the verifier would follow the address that it knows beside the others.
	 */
	address->words[3] ^= (address->words[3] ^ only.words[3]) & (closed - 1);
}
