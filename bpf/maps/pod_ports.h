/*
 * Ports of bridges where packets of pods came in, and the pods' hardware addresses at that time.
 * The forwarding table of a bridge has the same, but programs cannot ask it. So the fast path
 * delivers into a pod on a bridge as into any other pod (path/fast/route.h). An entry is
 * only written where the neighbour table has the same hardware address for the pod, and only used
 * where it still has.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

struct pod_port {
	__u32 ifindex;
	__u8 mac[6]; /* of the pod */
	__u16 zero;
};

MAP("lru_hash", struct address, struct pod_port, pod_ports, MAX_INTERFACES, 0);

static inline bool mac_equal(const __u8 *a, const __u8 *b)
{
	const __u16 *these = (const __u16 *)a, *those = (const __u16 *)b;

	return !((these[0] ^ those[0]) | (these[1] ^ those[1]) | (these[2] ^ those[2]));
}
