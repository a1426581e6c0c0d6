/*
 * Which ports flows of established_flows have: most packets are of no such flow, and one byte shows
 * that for most of them, of both directions. Only the agent writes it: it sets the byte of a flow
 * before it makes the flow fast, and clears the byte when the flow is gone.
 */
#pragma once

#include "lib/map.h"
#include "lib/wire.h"

#define ESTABLISHED_PORTS 65536

struct established_ports {
	__u8 listed[ESTABLISHED_PORTS]; /* at established_port_index() */
};

MAP("array", __u32, struct established_ports, established_ports, 1, 0);

/* Clients take ports in turn, and their indices are neighbours. The same for answers. */
static inline __u32 established_port_index(__be16 source, __be16 destination)
{
	__u32 number = bpf_ntohs(source ^ destination);

	/* See port_filter_index(). */
	asm volatile("" : "+r"(number));
	return number % ESTABLISHED_PORTS;
}

/* True if there may be a fast flow with these ports. */
static inline bool established_ports_listed(__be16 source, __be16 destination)
{
	__u32 only = 0;
	struct established_ports *ports = established_ports.lookup(&only);

	return ports && ports->listed[established_port_index(source, destination)];
}
