/*
 * Direct flows: connections to a backend's own address that take the stack. (Direct flows on the
 * fast path are in maps/fast_flows.h.) They are not translated. But a client may use one source
 * port for a direct flow and for a connection through a frontend that chose the same backend. After
 * routing both have the same 5-tuple, and no reply shows which of the two it belongs to. So the
 * second one gets another source port. For that, first packets of direct flows to known endpoints
 * are remembered as fingerprints. In this table a new fingerprint replaces the old one with the
 * same index.
 *
 * The fingerprint of another flow, or of a flow that has ended, changes a port number and does no
 * harm. But if fingerprints were never forgotten, a client with many direct connections would soon
 * have no ports of its own left. So the end of a TCP flow is noted, and a silent flow loses its
 * port in time.
 */
#pragma once

#include "lib/flow.h"
#include "lib/map.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/settings.h"

struct direct_flow {
	__u32 fingerprint;
	__u16 since; /* of its last first packet, or its end: in seconds, the lower bits of them */
	__u8 ended;  /* bits of enum direct_flow_end */
	__u8 zero;
};

enum direct_flow_end {
	DIRECT_ENDED_BY_CLIENT = 1,
	DIRECT_ENDED_BY_SERVER = 2,
	DIRECT_ENDED = 3,
};

/*
 * A silent TCP flow may lose its port after this time, if no other port is free. Its end was not
 * seen.
 */
#define DIRECT_LEFTOVER_SECONDS 3600

MAP("array", __u32, struct direct_flow, direct_flows, MAX_DIRECT_FLOWS, 0);

static inline __u64 end_hash(const struct address *address)
{
	__u64 hash = ((__u64)address->words[1] << 32 | address->words[0]) * 0x9e3779b97f4a7c15ULL;

	hash ^= (__u64)address->words[3] << 32 | address->words[2];
	hash *= 0xff51afd7ed558ccdULL;
	return hash ^ hash >> 32;
}

/*
 * Return the index for flows between two ends, in either direction. A client takes its ports in
 * turn, and such flows have indices in turn: so most entries are still in the cache when they are
 * needed.
 */
static inline __u32 flow_index(const struct flow *flow, __u64 source, __u64 destination)
{
	__u64 between = (source + destination + flow->protocol) * 0xc4ceb9fe1a85ec53ULL;

	return ((__u32)(between >> 32) + bpf_ntohs(flow->source_port) +
		bpf_ntohs(flow->destination_port)) &
	       (__u32)LOADED_NUMBER(MASK_DIRECT_FLOWS);
}

/*
 * Return the entry for a flow from client to backend, and compute the fingerprint of the flow. The
 * opposite flow has the same entry and another fingerprint: a FIN may be of either.
 */
static inline struct direct_flow *fingerprint_entry(const struct flow *flow, __u32 *fingerprint)
{
	__u64 source = end_hash(&flow->source), destination = end_hash(&flow->destination);
	__u32 index = flow_index(flow, source, destination);
	__u64 hash;

	hash = (source ^ flow->source_port) * 0xff51afd7ed558ccdULL + flow->protocol;
	hash = (hash ^ hash >> 32 ^ destination ^ flow->destination_port) * 0xc4ceb9fe1a85ec53ULL;
	*fingerprint = (__u32)(hash >> 32) | 1;
	return direct_flows.lookup(&index);
}

static inline __u16 direct_flow_now(void)
{
	return bpf_ktime_get_coarse_ns() / NS_PER_SECOND;
}

/* Remember a flow. */
static inline void direct_flow_note(const struct flow *flow)
{
	struct direct_flow written = {.since = direct_flow_now()};
	struct direct_flow *entry = fingerprint_entry(flow, &written.fingerprint);
	bool known;

	if (!entry)
		return;
	known = entry->fingerprint == written.fingerprint && !entry->ended;
	if (known && entry->since == written.since)
		return;
	*entry = written;
	if (!known)
		COUNT(direct_flows_noticed);
}

/*
 * Note that a packet with FIN or RST belongs to a flow, if that is remembered. At ingress it is of
 * the client, at egress of the server.
 */
static inline void direct_flow_end(const struct flow *flow, __u8 tcp_flags)
{
	bool of_client = flow->hook == HOOK_INGRESS;
	struct direct_flow *entry;
	struct flow direct;
	__u32 fingerprint;

	if (of_client)
		direct = *flow;
	else
		flow_reverse(&direct, flow, 0);
	entry = fingerprint_entry(&direct, &fingerprint);
	if (!entry || entry->fingerprint != fingerprint)
		return;
	if (tcp_flags & TCP_RST)
		entry->ended = DIRECT_ENDED;
	else
		entry->ended |= of_client ? DIRECT_ENDED_BY_CLIENT : DIRECT_ENDED_BY_SERVER;
	entry->since = direct_flow_now();
}

/*
 * True if a direct flow still needs its port. `since`: its last first packet, its end, or the last
 * datagram of a fast one. `urgent`: there is no other port, so one of a flow that has just ended is
 * taken, too.
 */
static inline bool direct_flow_holds(const struct settings *settings, __u8 protocol, __u16 since,
				     bool ended, bool urgent)
{
	__u16 idle = direct_flow_now() - since;

	if (ended)
		return !urgent && idle <= LINGER_SECONDS;
	if (protocol == PROTO_UDP)
		return idle <= settings->udp_seconds;
	return !urgent || idle <= DIRECT_LEFTOVER_SECONDS;
}

/* True if `routed`, client to backend, is the 5-tuple of a direct flow that needs its port. */
static inline bool direct_flow_exists(const struct settings *settings, const struct flow *routed,
				      bool urgent)
{
	__u32 fingerprint;
	struct direct_flow *entry = fingerprint_entry(routed, &fingerprint);

	return entry && entry->fingerprint == fingerprint &&
	       direct_flow_holds(settings, routed->protocol, entry->since,
				 entry->ended == DIRECT_ENDED, urgent);
}
