/*
 * STEP_PARSE_SLOW: parsing of fragments, of IPv6 packets with extension headers, and of frames with
 * a priority tag in their bytes.
 */
#pragma once

#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/wire.h"
#include "maps/fragments.h"
#include "path/fragments.h"
#include "path/hook/triage.h"
#include "path/packet.h"

#define MAX_EXTENSIONS 8

struct ipv6_extension {
	__u8 next_header;
	__u8 length; /* of the header, in units that depend on its type */
};

static inline __u8 fragment_kind(bool later)
{
	return later ? FRAGMENT_LATER : FRAGMENT_FIRST;
}

static inline bool parse_slow_ipv4(struct __sk_buff *skb, struct packet *packet)
{
	struct ipv4_start ip;

	if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)))
		return false;
	packet->flow.protocol = ip.protocol;
	packet->l4 = packet->l3 + (ip.version_and_length & 0xf) * 4;
	packet->fragment_id = ip.id;
	packet->fragment_protocol = ip.protocol;
	if (ip.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET | IPV4_MORE_FRAGMENTS))
		packet->fragment = fragment_kind(ip.fragment & bpf_htons(IPV4_FRAGMENT_OFFSET));
	return true;
}

static inline bool parse_slow_ipv6(struct __sk_buff *skb, struct packet *packet)
{
	__u32 at = packet->l3 + IPV6_HEADER_LENGTH;
	struct ipv6_start ip;
	__u8 next;

	if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)))
		return false;
	next = ip.next_header;
#pragma clang loop unroll(disable)
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		struct ipv6_extension extension;

		if (!ipv6_is_extension(next))
			break;
		if (next == IPV6_FRAGMENT) {
			struct ipv6_fragment fragment;

			if (bpf_skb_load_bytes(skb, at, &fragment, sizeof(fragment)))
				return false;
			packet->fragment_id = fragment.id;
			packet->fragment_protocol = 0;
			/* An atomic fragment (RFC 6946) is the whole packet. */
			if (fragment.offset & bpf_htons(0xfff9))
				packet->fragment =
					fragment_kind(fragment.offset & bpf_htons(0xfff8));
			next = fragment.next_header;
			at += sizeof(fragment);
			/* In a later fragment, data follows. */
			if (packet->fragment == FRAGMENT_LATER)
				break;
			continue;
		}
		if (bpf_skb_load_bytes(skb, at, &extension, sizeof(extension)))
			return false;
		at += next == IPV6_AUTHENTICATION ? (extension.length + 2) * 4 :
						    (extension.length + 1) * 8;
		next = extension.next_header;
	}
	packet->flow.protocol = next;
	packet->l4 = at;
	return true;
}

static inline bool parse_slow_transport(struct __sk_buff *skb, struct packet *packet)
{
	struct tcp_progress tcp;
	struct ports ports;

	if (has_ports(packet->flow.protocol)) {
		if (bpf_skb_load_bytes(skb, packet->l4, &ports, sizeof(ports)))
			return false;
		packet->flow.source_port = ports.source;
		packet->flow.destination_port = ports.destination;
		if (packet->flow.protocol != PROTO_TCP)
			return true;
		if (bpf_skb_load_bytes(skb, packet->l4 + TCP_PROGRESS_OFFSET, &tcp, sizeof(tcp)))
			return false;
		keep_tcp(packet, &tcp);
		return true;
	}
	if (!parse_icmp(skb, packet->l4, packet->flow.hook, packet->v4, packet->flow.protocol,
			&packet->icmp_error, &packet->echo))
		return false;
	/* Errors are not fragmented. */
	return !packet->fragment || packet->echo;
}

/* Parse a packet of KIND_UNUSUAL, and return its kind as far as its headers tell it. */
static inline enum kind parse_slow(struct __sk_buff *skb, struct packet *packet)
{
	begin_packet(packet);
	packet->tcp_flags = packet->icmp_error = packet->echo = 0;
	packet->flow.source_port = packet->flow.destination_port = 0;
	packet->flow.zero = packet->jumbo = 0;
	if (packet->v4 ? !parse_slow_ipv4(skb, packet) : !parse_slow_ipv6(skb, packet))
		return KIND_OTHER;
	if (!parse_addresses(skb, packet->l3, packet->v4, &packet->flow, false))
		return KIND_OTHER;
	if (packet->fragment == FRAGMENT_LATER) {
		__u8 first = fragment_recall(packet);

		packet->echo = first == FRAGMENT_ANSWERED;
		if (first == FRAGMENT_TRANSLATED || packet->echo)
			return KIND_UNDECIDED;
		/* Only at ingress: fragments that are in order there are so at egress. */
		return first != FRAGMENT_PASSED && packet->flow.hook == HOOK_INGRESS ? KIND_EARLY :
										       KIND_OTHER;
	}
	return parse_slow_transport(skb, packet) ? KIND_UNDECIDED : KIND_OTHER;
}
