/*
 * Most packets pass as they are: they are in the middle of a TCP connection that was never
 * translated, and that does not take the fast path. They leave here, after one look at one piece of
 * the frame and at bytes that say which ports connections have. (Each program runs with cold
 * caches, between much code of the kernel: what is not read and not jumped over is what counts.)
 */
#pragma once

#include "lib/flow.h"
#include "lib/wire.h"
#include "maps/port_filter.h"
#include "maps/settings.h"
#include "path/fast/established.h"

/* A frame with a TCP segment, without options of IP. */
struct plain_segment {
	__u8 link[ETH_HLEN];
	struct ipv4_start ip;
	__be32 addresses[2];
	struct ports ports;
	__be32 sequence;
	struct tcp_progress tcp;
} __attribute__((packed));

/* True if a packet passes whatever the rest of it says. For a frame with an Ethernet header. */
static inline bool passes_at_once(struct __sk_buff *skb, const struct settings *settings, __u8 hook)
{
	struct plain_segment *frame = (void *)(long)skb->data;
	struct port_filter *filter;
	__u8 flags;

	/* A mark of an earlier hook (path/marks.h) may ask for something. */
	if (skb->protocol != bpf_htons(ETHERTYPE_IPV4) || skb->tc_index ||
	    (void *)(frame + 1) > (void *)(long)skb->data_end)
		return false;
	if (settings->takeover ||
	    (hook == HOOK_INGRESS && (settings->fast_path || settings->fast_outside)))
		return false;
	flags = frame->tcp.flags;
	if (frame->ip.version_and_length != IPV4_WITHOUT_OPTIONS ||
	    frame->ip.protocol != PROTO_TCP ||
	    frame->ip.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET | IPV4_MORE_FRAGMENTS) ||
	    !(flags & TCP_ACK) || tcp_ends(flags))
		return false;
	filter = port_filter_get(hook, PROTO_TCP);
	if (!filter || filter->source[port_filter_index(frame->ports.source)] ||
	    filter->destination[port_filter_index(frame->ports.destination)])
		return false;
	return !settings->established ||
	       !established_is_worth(hook, PROTO_TCP, &frame->ports, flags);
}
