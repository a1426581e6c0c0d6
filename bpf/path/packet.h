/*
 * What is known of the packet at hand: a map with one entry per CPU. The stack is too small for it,
 * steps need what the program before them knew, and the verifier does not follow values in a map,
 * which would multiply the paths that it has to check.
 */
#pragma once

#include "lib/flow.h"
#include "lib/map.h"
#include "lib/parse.h"
#include "lib/wire.h"
#include "maps/backends.h"
#include "maps/frontends.h"
#include "path/client.h"

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

/* Ports in use are often adjacent, so tries are strides apart. An odd stride reaches all of 2^n. */
struct port_search {
	__u32 number;
	__u32 stride;
	__u32 first; /* number */
	__u32 round;
	__u32 claim;	/* of enum port_claim */
	__u32 shortage; /* of enum shortage: what was known when it began */
};

/* The interfaces where packets of a fast path connection come in; 0: it takes the stack. */
struct fast_path_ends {
	__u32 client;
	__u32 backend;
};

/*
 * Decisions about the first packet of a connection. STEP_FIRST sets them for STEP_SCHEDULE (which
 * reads `client`), STEP_REVISE, STEP_OPEN, STEP_UNTRANSLATED and STEP_REJECT (which reads `verdict` and
 * `choice`). For other packets this has stale values.
 */
struct first {
	struct choice choice; /* STEP_REVISE may choose another backend */
	struct client client;
	struct fast_path_ends ends; /* set by STEP_OPEN, for itself and STEP_UNTRANSLATED */
	struct frontend_key asked;  /* the key of the frontend */
	__u16 observed;		    /* of the connection; for STEP_OPEN */
	__u8 verdict; /* on a frontend, of enum verdict; the verifier does not know its value */
	__u8 untranslated; /* it gets entries only for the sake of the fast path */
	__u8 direct;	   /* it goes to a backend's own address as it is */
	__u8 outside;	   /* as `ends`: its connection is one from outside to a pod */
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

/*
 * How the packet at hand leaves. A program that jumps to STEP_FAST_PATH or STEP_REWRITE sets `via`
 * for that step. fast_path_find() sets the rest for the program at hand, and in STEP_OPEN for
 * STEP_FAST_PATH.
 */
struct forward {
	__u8 via;    /* of enum forwarding */
	__u8 hop;    /* 1: the fast path has a route, so the hop limit is decremented; else 0 */
	__u8 to_pod; /* to a pod of this node, by its interface or past that */
	__u8 egress_done; /* nothing is left to do at egress */
	__u8 redirected;  /* STEP_REWRITE alone: it takes the fast path after that */
	__u32 to_peer;	  /* past this interface, a veth, to its end in a pod; 0: by an interface */
	__u64 route[8];	  /* struct bpf_fib_lookup */
};

struct packet {
	/* Its headers: set by triage() or by STEP_PARSE_SLOW, and read by all steps. */
	struct flow flow;
	__u32 l3; /* offset of the IP header */
	__u32 l4; /* offset of the transport header */
	__u8 v4;
	__u8 tcp_flags;
	__u8 icmp_error;
	__u8 echo;		/* an echo request: it has no flow, but may be for a cluster IP */
	__u8 fragment;		/* of enum fragment; reset by begin_packet(), as the next two */
	__u8 reuse;		/* of enum reuse; 0: it opens no connection anew. For STEP_FIRST */
	__u8 jumbo;		/* bytes of the header of BIG TCP behind that of IPv6 */
	__u8 passes_egress;	/* egress may have to translate it: it is of no direct flow */
	__u8 fragment_protocol; /* of a fragment, as `fragment_id` */
	__be16 tcp_window;
	__be32 tcp_acknowledged;

	struct flow after; /* what `flow` becomes: set by the program that decides it */
	struct first first;
	struct forward forward;	   /* begin_packet() resets `hop` */
	struct port_search search; /* of STEP_OPEN and STEP_MASQUERADE, from round to round */
	__u32 fragment_id;
};

MAP("percpu_array", __u32, struct packet, packets, 1, 0);

static inline struct packet *packet_get(void)
{
	__u32 only = 0;

	return packets.lookup(&only);
}

/* Reset the fields that parsing does not set for every packet. */
static inline void begin_packet(struct packet *packet)
{
	packet->reuse = 0;
	packet->fragment = FRAGMENT_NONE;
	packet->forward.hop = 0;
	packet->passes_egress = 0;
	packet->search.round = 0;
}

/* True if the transport follows the IP header at once, or behind the header of BIG TCP. */
static inline bool packet_is_plain(const struct packet *packet)
{
	return packet->l4 - packet->l3 - packet->jumbo ==
	       (packet->v4 ? IPV4_HEADER_LENGTH : IPV6_HEADER_LENGTH);
}

static inline void keep_tcp(struct packet *packet, const struct tcp_progress *tcp)
{
	packet->tcp_flags = tcp->flags;
	packet->tcp_window = tcp->window;
	packet->tcp_acknowledged = tcp->acknowledged;
}

/* Keep the flow of a packet, which has a `protocol`, `ports` and, of TCP, `tcp`. */
static inline bool parse_flow(struct __sk_buff *skb, struct packet *packet, __u8 protocol,
			      const struct ports *ports, const struct tcp_progress *tcp)
{
	packet->flow.source_port = ports->source;
	packet->flow.destination_port = ports->destination;
	packet->flow.protocol = protocol;
	packet->flow.zero = 0;
	keep_tcp(packet, tcp);
	begin_packet(packet);
	return parse_addresses(skb, packet->l3, packet->v4, &packet->flow, false);
}

/*
 * Compute the bytes of the transport by the IP header, so without padding. A header without a
 * length is one of BIG TCP. Nonzero: cannot be read.
 */
static inline int transport_size(struct __sk_buff *skb, const struct packet *packet, __u32 *size)
{
	__u32 end = skb->len;

	if (packet->v4) {
		struct ipv4_start ip;

		if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)))
			return -1;
		if (ip.total_length)
			end = packet->l3 + bpf_ntohs(ip.total_length);
	} else {
		struct ipv6_start ip;

		if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)))
			return -1;
		if (ip.payload_length)
			end = packet->l3 + IPV6_HEADER_LENGTH + bpf_ntohs(ip.payload_length);
	}
	*size = end - packet->l4;
	return 0;
}
