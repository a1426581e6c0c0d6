/*
 * How many packets in the middle of flows netfilter has let pass, by their ports: a connection that
 * is too short to become fast costs a byte for each of its packets, and nothing else is looked up.
 * Two flows with one index count together, which only means that one of them is looked at earlier.
 */
#pragma once

#include "lib/map.h"
#include "lib/wire.h"
#include "maps/established_ports.h"

#define ESTABLISHED_SHORT_PACKETS 8

struct established_counts {
	__u8 passed[ESTABLISHED_PORTS]; /* at established_port_index() */
};

MAP("array", __u32, struct established_counts, established_counts, 1, 0);

/*
 * Count a packet. True if its flow has had enough packets to be worth a look. A packet with SYN,
 * FIN or RST is not counted, and a SYN begins anew.
 */
static inline bool established_counts_enough(__be16 source, __be16 destination, __u8 protocol,
					     __u8 tcp_flags)
{
	__u32 only = 0;
	struct established_counts *counts = established_counts.lookup(&only);
	__u8 *passed;

	if (!counts)
		return false;
	passed = &counts->passed[established_port_index(source, destination)];
	if (protocol == PROTO_TCP && tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)) {
		if (tcp_flags & TCP_SYN && *passed)
			*passed = 0;
		return false;
	}
	if (*passed >= ESTABLISHED_SHORT_PACKETS)
		return true;
	++*passed;
	return false;
}
