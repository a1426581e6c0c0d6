/*
 * Packets of Services that other parts of the node drop: netfilter, the routes, full buffers. The
 * kernel calls this program for each packet that it drops, with the reason. So the program is
 * attached only while somebody asks (`bpfsvc observe --drops-elsewhere`).
 *
 * A packet may be dropped anywhere between a client and a backend, so it may have the addresses of
 * any hook. It is looked for as each hook of either direction knows it. Nothing but the stack is
 * written to: the packet may have been dropped in the midst of another program.
 */
#pragma once

#include "lib/flow.h"
#include "lib/subprograms.h"
#include "lib/tracepoint.h"
#include "lib/verifier.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/dropped_packets.h"
#include "maps/events.h"
#include "maps/frontends.h"
#include "maps/peer_names.h"
#include "path/conn/observe.h"

/* A dropped packet, as the subprograms are handed it. */
struct dropped_packet {
	struct flow flow; /* as the packet is, or its answer; at one of the hooks */
	__u64 socket;	  /* its cookie; 0 if the packet belongs to none */
	__u32 reason;	  /* the kernel's */
	__u32 mask;	  /* of the sample that it is in */
};

enum dropped_packet_argument_size {
	ARGUMENT_TELL_CONNECTION = sizeof(struct dropped_packet),
	ARGUMENT_TELL_FRONTEND = sizeof(struct dropped_packet),
	ARGUMENT_TELL_SOCKET = sizeof(struct dropped_packet),
};

/*
 * Tell of a packet by the entry of a connection, by the frontend that `flow` is for, or by the
 * socket that has sent it. They return 1 if they know the packet, else 0.
 */
static int (*tell_connection)(struct dropped_packet *dropped) = (void *)SUBPROGRAM_TELL_CONNECTION;
static int (*tell_frontend)(struct dropped_packet *dropped) = (void *)SUBPROGRAM_TELL_FRONTEND;
static int (*tell_socket)(struct dropped_packet *dropped) = (void *)SUBPROGRAM_TELL_SOCKET;

int subprogram_tell_connection(struct dropped_packet *dropped)
{
	struct connection *entry;
	struct event *event;
	struct flow flow;

	if (!dropped)
		return 0;
	flow = dropped->flow;
	entry = connection_find(&flow);
	if (!entry)
		return 0;
	if (connection_around_wire(&flow, entry)) {
		/* An answer to a masqueraded packet leads to the entry of the client. */
		if (!entry->reply)
			return 0;
		flow = entry->after;
		flow.hook = HOOK_EGRESS;
		entry = connection_find(&flow);
		if (!entry || !entry->reply)
			return 0;
	}
	if (!entry->service)
		return 0;
	event = event_of_entry(&flow, entry, EVENT_DROPPED_ELSEWHERE);
	if (!event)
		return 1;
	event->counters = dropped->reason;
	event->sample = dropped->mask + 1;
	event->reason = EVENT_REASON_NONE;
	event_emit(event);
	return 1;
}

/* An event of a packet without an entry. `flow` is from the client to the backend or frontend. */
static inline struct event *event_of_dropped(const struct dropped_packet *dropped)
{
	struct event *event = event_begin(EVENT_DROPPED_ELSEWHERE, dropped->mask);

	if (!event)
		return NULL;
	event->client = dropped->flow.source;
	event->client_port = dropped->flow.source_port;
	event->protocol = dropped->flow.protocol;
	event->counters = dropped->reason;
	event->reason = EVENT_REASON_NONE;
	event->masquerade = 0;
	return event;
}

int subprogram_tell_frontend(struct dropped_packet *dropped)
{
	struct frontend_key key = {};
	struct frontend *frontend;
	struct event *event;

	if (!dropped)
		return 0;
	key.address = dropped->flow.destination;
	key.port = dropped->flow.destination_port;
	key.protocol = dropped->flow.protocol;
	frontend = frontend_find(&key);
	if (!frontend)
		return 0;
	event = event_of_dropped(dropped);
	if (!event)
		return 1;
	event->frontend = dropped->flow.destination;
	event->frontend_port = dropped->flow.destination_port;
	event_address_clear(&event->backend);
	event->backend_port = 0;
	event->service = frontend->service;
	event->path = EVENT_BY_TC;
	event_emit(event);
	return 1;
}

int subprogram_tell_socket(struct dropped_packet *dropped)
{
	struct frontend_key key = {};
	struct frontend *frontend;
	struct peer_name *name;
	struct event *event;

	if (!dropped)
		return 0;
	name = peer_name_of(dropped->socket, &dropped->flow.destination,
			    dropped->flow.destination_port);
	if (!name)
		return 0;
	key.address = name->frontend;
	key.port = name->frontend_port;
	key.protocol = dropped->flow.protocol;
	frontend = frontend_find(&key);
	if (!frontend)
		return 0;
	event = event_of_dropped(dropped);
	if (!event)
		return 1;
	event->frontend = name->frontend;
	event->frontend_port = name->frontend_port;
	event->backend = name->backend;
	event->backend_port = name->backend_port;
	event->service = frontend->service;
	event->path = EVENT_BY_SOCKET;
	event_emit(event);
	return 1;
}

/* The part of an IP header that is read. IPv6 needs all of it, IPv4 the first half. */
union dropped_ip_header {
	struct {
		struct ipv4_start v4;
		__be32 source_v4;
		__be32 destination_v4;
	};
	struct {
		struct ipv6_start v6;
		__be32 source_v6[4];
		__be32 destination_v6[4];
	};
};

/*
 * Read the flow of a packet; false if it has no ports to be found. Later fragments have none. After
 * extension headers they are not looked for.
 */
static inline bool dropped_flow(const struct dropped_packets *fields, __u64 skb, struct flow *flow)
{
	struct ports ports = {};
	union dropped_ip_header ip = {};
	__u16 network = 0;
	__u64 head = 0;
	__u32 length;

	if (read_kernel(&head, sizeof(head), skb + fields->head) ||
	    read_kernel(&network, sizeof(network), skb + fields->network_header) ||
	    read_kernel(&ip, sizeof(ip), head + network))
		return false;
	if (ip.v4.version_and_length >> 4 == 6) {
		flow->protocol = ip.v6.next_header;
		address_from_v6(&flow->source, ip.source_v6);
		address_from_v6(&flow->destination, ip.destination_v6);
		length = IPV6_HEADER_LENGTH;
	} else if (ip.v4.version_and_length >> 4 == 4 &&
		   !(ip.v4.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET))) {
		flow->protocol = ip.v4.protocol;
		address_from_v4(&flow->source, ip.source_v4);
		address_from_v4(&flow->destination, ip.destination_v4);
		length = (ip.v4.version_and_length & 15) * 4;
	} else {
		return false;
	}
	if (flow->protocol != PROTO_TCP && flow->protocol != PROTO_UDP &&
	    flow->protocol != PROTO_SCTP)
		return false;
	if (read_kernel(&ports, sizeof(ports), head + network + length))
		return false;
	flow->source_port = ports.source;
	flow->destination_port = ports.destination;
	return true;
}

/* Return the cookie of the socket that has sent a packet; 0 if the packet has none any more. */
static inline __u64 dropped_socket(const struct dropped_packets *fields, __u64 skb)
{
	__u64 socket = 0, cookie = 0;

	if (read_kernel(&socket, sizeof(socket), skb + fields->socket) || !socket)
		return 0;
	read_kernel(&cookie, sizeof(cookie), socket + LOADED_NUMBER(SOCKET_COOKIE));
	return cookie;
}

/* True if a connection knows the packet, or the answer to it, at a hook; then it is told. */
static inline bool tell_at_any_hook(struct dropped_packet *dropped)
{
	dropped->flow.hook = HOOK_EGRESS;
	if (tell_connection(dropped))
		return true;
	dropped->flow.hook = HOOK_INGRESS;
	return tell_connection(dropped);
}

/* Tell of a packet that the kernel has dropped, if it is of a Service. */
static inline int tell_dropped(struct raw_tracepoint *context)
{
	struct dropped_packets *fields = dropped_packets_get();
	struct observed *wanted = observed_if(EVENT_DROPPED_ELSEWHERE);
	__u64 skb = context->arguments[0];
	struct dropped_packet dropped = {};
	struct flow flow = {};

	dropped.reason = context->arguments[2];
	if (!fields || !wanted || drop_is_ignored(fields, dropped.reason))
		return 0;
	dropped.mask = wanted->failures;
	if (!in_sample(dropped.mask) || !dropped_flow(fields, skb, &flow))
		return 0;
	dropped.socket = dropped_socket(fields, skb);
	flow_reverse(&dropped.flow, &flow, HOOK_EGRESS);
	if (tell_at_any_hook(&dropped))
		return 0;
	dropped.flow = flow;
	if (tell_at_any_hook(&dropped) || tell_frontend(&dropped) ||
	    (dropped.socket && tell_socket(&dropped)))
		return 0;
	flow_reverse(&dropped.flow, &flow, HOOK_EGRESS);
	tell_frontend(&dropped);
	return 0;
}
