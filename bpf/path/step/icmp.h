/*
 * STEP_ICMP: ICMP errors. They quote a packet as it was after translation. Quote and addresses are
 * translated back, so that the sender recognises its own packet; path MTU discovery depends on
 * that. The checksum of the quoted transport stays as it is: often it is cut off, and no receiver
 * verifies it.
 *
 * Redirects about a translated packet are dropped, as netfilter does. They name a way to the
 * backend, and the client, which sends to the frontend, must neither follow nor see it.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/rewrite.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/fast_flows.h"
#include "maps/settings.h"
#include "path/conn/attempts.h"
#include "path/fast/fast_path.h"
#include "path/packet.h"
#include "path/rewrite.h"

/*
 * Return the offset of the packet that a message about it quotes; 0 if it quotes none. `redirect`
 * says whether the message is a redirect.
 */
static inline __u32 quote_offset(struct __sk_buff *skb, const struct packet *packet, bool *redirect)
{
	__u32 offset = packet->l4 + ICMPV6_REDIRECT_OPTIONS;
	struct nd_option option;
	__u8 type;

	if (!read_far_bytes(skb, packet->l4, &type, sizeof(type)))
		return 0;
	*redirect = icmp_is_redirect(packet->v4, type);
	if (packet->v4 || !*redirect)
		return packet->l4 + sizeof(struct icmp_header);
	if (!read_far_bytes(skb, offset, &option, sizeof(option)))
		return 0;
	if (option.type == OPTION_TARGET_LINK_LAYER) {
		offset += option.length * 8;
		if (!read_far_bytes(skb, offset, &option, sizeof(option)))
			return 0;
	}
	return option.type == OPTION_REDIRECTED ? offset + 8 : 0;
}

/* Replace an address of the quoted packet; the ICMP checksum covers it as data. */
static inline int rewrite_quoted_address(struct __sk_buff *skb, __u32 l3, bool v4, __u32 field,
					 struct address *from, struct address *to, __u32 checksum)
{
	/*
	 * In IPv4, address and header checksum of the quote change by opposite amounts: the sum
	 * stays.
	 */
	if (!v4) {
		__s64 difference = bpf_csum_diff(from->words, 16, to->words, 16, 0);
		int error = bpf_l4_csum_replace(skb, checksum, 0, difference, 0);

		if (error)
			return error;
	}
	return rewrite_address(skb, l3, v4, field, from, to, 0, 0);
}

static inline int rewrite_quote(struct __sk_buff *skb, __u32 l3, __u32 l4, bool v4,
				struct flow *before, struct flow *after, __u32 checksum)
{
	int error = 0;

	if (!address_equal(&before->source, &after->source))
		error |= rewrite_quoted_address(skb, l3, v4, source_offset(v4), &before->source,
						&after->source, checksum);
	if (!address_equal(&before->destination, &after->destination))
		error |= rewrite_quoted_address(skb, l3, v4, destination_offset(v4),
						&before->destination, &after->destination,
						checksum);
	if (before->source_port != after->source_port)
		error |=
			rewrite_port(skb, l4, before->source_port, after->source_port, checksum, 0);
	if (before->destination_port != after->destination_port)
		error |= rewrite_port(skb, l4 + 2, before->destination_port,
				      after->destination_port, checksum, 0);
	return error;
}

/*
 * Let an error pass: by the fast path, if its connection takes that. Conntrack would drop an error
 * about a connection that it has never seen. The error passes egress where it leaves.
 */
static inline int pass_icmp_error(struct __sk_buff *skb, struct packet *packet, bool fast)
{
	if (!fast || !fast_path_find(skb, packet, BY_FAST_PATH))
		return TC_ACT_UNSPEC;
	if (decrement_hops(skb, packet))
		return rewritten(-1);
	packet->forward.to_peer = 0;
	return fast_path_leave(skb, packet);
}

/* Translate an error about `inner`, a packet that is known elsewhere as `after`. */
static inline int rewrite_icmp_error(struct __sk_buff *skb, struct packet *packet, __u32 inner_l3,
				     __u32 inner_l4, struct flow *inner, struct flow *after)
{
	__u32 checksum = packet->l4 + ICMP_CHECKSUM_OFFSET;
	int error = rewrite_quote(skb, inner_l3, inner_l4, packet->v4, inner, after, checksum);

	if (packet->flow.hook == HOOK_INGRESS) {
		error |= rewrite_address(skb, packet->l3, packet->v4,
					 destination_offset(packet->v4), &packet->flow.destination,
					 &after->source, packet->v4 ? 0 : checksum, 0);
		packet->after.destination = after->source;
	} else if (address_equal(&packet->flow.source, &inner->destination)) {
		/*
		 * The backend itself sends the error, and the client knows it by the frontend's
		 * address.
		 */
		error |= rewrite_address(skb, packet->l3, packet->v4, source_offset(packet->v4),
					 &packet->flow.source, &after->destination,
					 packet->v4 ? 0 : checksum, 0);
	}
	return error;
}

/* True if an error says that its packet cannot be delivered; one that is too long may be cut. */
static inline bool says_unreachable(struct __sk_buff *skb, const struct packet *packet)
{
	struct icmp_header header;

	if (!read_far_bytes(skb, packet->l4, &header, sizeof(header)))
		return false;
	return packet->v4 ? header.type == ICMP_UNREACHABLE && header.code != ICMP_TOO_BIG :
			    header.type == ICMPV6_UNREACHABLE;
}

/*
 * True if an error about a packet of `inner` takes the fast path, where only egress would have an
 * entry: `key`. Where netfilter sees connections begin, it sees the errors about them as well; it
 * does not know those from outside.
 */
static inline bool error_is_fast(struct __sk_buff *skb, const struct settings *settings,
				 struct packet *packet, struct flow *key, const struct flow *inner)
{
	struct connection *leaving = fast_path_reply(skb, settings, key, &packet->passes_egress);

	if (leaving)
		return !netfilter_comes_first(settings, leaving);
	return !(settings->established | packet->passes_egress) &&
	       between_pods(settings, inner, packet->v4) && fast_flow_known(inner);
}

static inline int translate_icmp_error(struct __sk_buff *skb, const struct settings *settings,
				       struct packet *packet)
{
	bool fast = false, redirect = false;
	__u32 inner_l3 = quote_offset(skb, packet, &redirect);
	struct flow inner = {}, key, after;
	struct connection *connection;
	__u32 header;
	int error;

	if (!inner_l3)
		return TC_ACT_UNSPEC;
	header = parse_quote(skb, inner_l3, packet->v4, &inner);
	if (!header)
		return TC_ACT_UNSPEC;

	/* The error travels like a reply to the packet it quotes. */
	flow_reverse(&key, &inner, packet->flow.hook);
	connection = connection_find(&key);
	if (connection && redirect) {
		COUNT(dropped__redirects);
		return TC_ACT_SHOT;
	}
	if (connection && says_unreachable(skb, packet))
		attempt_refuse(&key, connection);
	packet->after = packet->flow;
	if (packet->flow.hook == HOOK_INGRESS) {
		if (!connection)
			return pass_icmp_error(skb, packet,
					       error_is_fast(skb, settings, packet, &key, &inner));
		fast = !netfilter_comes_first(settings, connection) &&
		       forwarding_of(skb, settings, packet, connection) != BY_STACK;
	}
	if (!connection || connection->masquerade_pending)
		return TC_ACT_UNSPEC;
	flow_reverse(&after, &connection->after, 0);

	error = rewrite_icmp_error(skb, packet, inner_l3, inner_l3 + header, &inner, &after);
	if (error)
		return rewritten(error);
	COUNT(icmp_errors_translated);
	return pass_icmp_error(skb, packet, fast);
}
