/*
 * Hardware addresses of all interfaces of this node, also of those without programs. A bridge or a
 * macvlan has an address of its own, and frames to it come by an interface that has another one.
 */
#pragma once

#include "lib/map.h"
#include "lib/wire.h"

struct hardware_address {
	__u8 bytes[6];
	__u8 zero[2];
};

MAP("hash", struct hardware_address, __u32, hardware_addresses, MAX_INTERFACES, BPF_F_NO_PREALLOC);

/*
 * True if a frame that came is for this node. Others come by an interface in promiscuous mode, and
 * by the port of a bridge that switches them.
 */
static inline bool frame_is_ours(struct __sk_buff *skb)
{
	struct hardware_address destination = {};

	if (skb->pkt_type != PACKET_OTHERHOST)
		return true;
	return !bpf_skb_load_bytes(skb, 0, destination.bytes, sizeof(destination.bytes)) &&
	       hardware_addresses.lookup(&destination);
}
