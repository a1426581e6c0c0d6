/*
 * What the programs know of the packet at hand, and room for bytes of it: maps with one entry per
 * CPU. The stack is too small for them, steps need what the program before knew, and the verifier
 * does not follow values in a map, which would multiply the paths that it has to check.
 */
#pragma once

#include "lib/flow.h"
#include "lib/map.h"
#include "maps/backends.h"
#include "maps/frontends.h"
#include "path/client.h"

/* Interfaces by which packets of a fast path connection come; 0: it takes the stack. */
struct fast_path_ends {
	__u32 client;
	__u32 backend;
};

/* How a packet goes on. */
enum forwarding {
	BY_STACK,
	BY_FAST_PATH,
	BY_FAST_PATH_TWICE,    /* what egress would do is done, too */
	BY_FAST_PATH_BACK = 4, /* with one of those: only if answers leave where the packet came */
	BY_FAST_PATH_ALL = 8,  /* with one of those: fragments and packets with options, too */
	BY_FAST_PATH_OUTSIDE = BY_FAST_PATH_BACK | BY_FAST_PATH_ALL,
};

/* Ports in use are often adjacent, so tries are strides apart. An odd stride reaches all of 2^n. */
struct port_search {
	__u32 number;
	__u32 stride;
	__u32 first; /* number */
	__u32 round;
	__u32 claim; /* of enum port_claim */
};

enum fragment {
	FRAGMENT_NONE,
	FRAGMENT_FIRST,
	FRAGMENT_LATER, /* without ports */
};

/* Why a packet of a known connection opens one anew. */
enum reuse {
	REUSE_CLOSED = 1,  /* the known one is closed */
	REUSE_MOVED = 2,   /* its backend is in quarantine, and has not answered */
	REUSE_CLEARED = 4, /* beside one of these: its entries are removed */
};

struct packet {
	struct flow flow;
	struct flow after; /* what `flow` must become */
	__u32 l3;	   /* offset of the IP header */
	__u32 l4;	   /* offset of the transport header */
	__u8 v4;
	__u8 tcp_flags;
	__u8 icmp_error;
	__u8 echo;     /* an echo request: it has no flow, but may be for a cluster IP */
	__u8 reuse;    /* of enum reuse; 0: it does not */
	__u8 fragment; /* of enum fragment */
	__u8 fragment_protocol;
	__u8 hop; /* 1: the fast path forwards it, so its hop limit is decremented */
	__u32 fragment_id;
	__u8 via;	    /* of enum forwarding; between steps */
	__u8 passes_egress; /* egress may have to translate it: it is of no direct flow */
	__u8 to_pod; /* on the fast path: to a pod of this node by its interface, or past that */
	__u8 egress_done; /* nothing is left to do at egress */
	__u8 redirected;  /* it is rewritten by a step, and takes the fast path then */
	__u8 outside;	  /* of a first packet: its connection is one from outside to a pod */
	__u8 verdict;	  /* of a first packet, on its way to be read as any number */
	__u8 untranslated; /* of a first packet: it gets entries only for the sake of the fast path */
	__u8 direct;	   /* of a first packet: it goes to a backend's own address as it is */
	__be16 tcp_window;
	__be32 tcp_acknowledged;
	__u32 to_peer; /* on the fast path: past this interface, a veth, to its end in a pod */
	struct fast_path_ends ends; /* of a first packet */
	__u64 route[8];		    /* on the fast path: struct bpf_fib_lookup */
	struct port_search search;  /* for a source port */
	struct frontend_key asked; /* of a first packet: its frontend, its sender and its backend */
	struct client client;
	struct choice choice;
};

MAP("percpu_array", __u32, struct packet, packets, 1, 0);

static inline struct packet *packet_get(void)
{
	__u32 only = 0;

	return packets.lookup(&only);
}
