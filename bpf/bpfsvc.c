/*
 * Every entry point, in the order in which a packet meets them. Each interface runs `ingress` on
 * what it receives and `egress` on what it sends; between the two, the kernel routes an ordinary
 * packet from client to backend. Steps are reached by tail calls, for what few packets need. XDP,
 * what the agent runs, and the programs of sockets follow at the end.
 */
#include "lib/flow.h"
#include "lib/verifier.h"
#include "lib/wire.h"
#include "maps/connections.h"
#include "maps/destinations.h"
#include "maps/direct_flows.h"
#include "maps/metadata.h"
#include "maps/settings.h"
#include "path/agent/explain.h"
#include "path/agent/gc.h"
#include "path/agent/recount.h"
#include "path/conn/attempts.h"
#include "path/conn/established.h"
#include "path/conn/state.h"
#include "path/fast/direct.h"
#include "path/fast/fast_path.h"
#include "path/fast/leave.h"
#include "path/fragments.h"
#include "path/hook/triage.h"
#include "path/marks.h"
#include "path/packet.h"
#include "path/socket/attempts.h"
#include "path/socket/counts.h"
#include "path/socket/lb.h"
#include "path/socket/translations.h"
#include "path/step/attempt.h"
#include "path/step/echo.h"
#include "path/step/established.h"
#include "path/step/first.h"
#include "path/step/icmp.h"
#include "path/step/masquerade.h"
#include "path/step/open.h"
#include "path/step/parse_slow.h"
#include "path/step/reject.h"
#include "path/step/rewrite.h"
#include "path/step/schedule.h"
#include "path/step/trial.h"
#include "path/step/untranslated.h"
#include "path/step_missing.h"
#include "path/tail_calls.h"
#include "path/xdp/forward.h"

/*
 * Find the connection of a parsed packet and translate it, or pass it on to where connections
 * begin. `inlined`: packets of established connections are translated here and not by a step.
 */
static inline int handle(struct __sk_buff *skb, const struct settings *settings,
			 struct packet *packet, __u8 hook, bool inlined)
{
	struct connection *connection, *leaving = NULL;

	if (packet->icmp_error)
		return tail_call_unknown(skb, packet, STEP_ICMP);
	if (packet->echo)
		return destination_may_be_frontend(&packet->flow.destination) ?
			       tail_call_unknown(skb, packet, STEP_FIRST) :
			       TC_ACT_UNSPEC;

	connection = connection_find(&packet->flow);
	if (connection && tcp_opens(packet->tcp_flags) && connection_closed(connection)) {
		if (hook == HOOK_EGRESS && !connection->reply) {
			connection_reopen(&packet->flow, connection);
		} else {
			packet->reuse = REUSE_CLOSED;
			connection = NULL;
		}
	}
	if (connection) {
		if (!inlined || conn_established_is_rare(connection, hook, packet->tcp_flags))
			return tail_call(skb, established_step(connection));
		packet_go_by(skb, settings, packet, hook, connection);
		if (!conn_established_advance(skb, settings, packet, connection))
			return TC_ACT_SHOT;
		if (hook == HOOK_INGRESS && packet->forward.via == BY_STACK &&
		    leaves_as_routed(settings, packet, connection))
			egress_done_note(skb, settings);
	} else {
		if (tcp_ends(packet->tcp_flags))
			direct_flow_end(&packet->flow, packet->tcp_flags);
		if (hook == HOOK_INGRESS && (inlined || settings->fast_outside))
			leaving = fast_path_reply_of(skb, settings, packet);
		if (!leaving || (!inlined && !leaving->outside))
			return conn_new_possible(skb, settings, packet, hook) ?
				       tail_call_unknown(skb, packet, STEP_FIRST) :
			       inlined ? fast_path_direct(skb, settings, packet) :
					 TC_ACT_UNSPEC;
		packet->forward.via = fast_path_reply_via(settings, leaving);
		if (!inlined)
			return tail_call(skb, STEP_REWRITE);
	}
	AS_IN_MEMORY();
	return leave(skb, packet, hook == HOOK_INGRESS ? packet->forward.via : BY_STACK, leaving);
}

/* Forward a packet of a fast flow; what cannot open one after all takes the steps of step/first.h. */
static inline int walk_fast(struct __sk_buff *skb, const struct settings *settings,
			    struct packet *packet)
{
	int verdict = fast_path_go_on(skb, settings, packet);

	return verdict == TC_ACT_UNSPEC && tcp_opens(packet->tcp_flags) ?
		       tail_call_unparsed(skb, packet) :
		       verdict;
}

static inline int walk(struct __sk_buff *skb, __u32 l2, __u8 hook)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();
	/* parse() says so of no other: the compiler need not know how. */
	bool may_be_fast = hook == HOOK_INGRESS && l2 == ETH_HLEN;

	if (!settings || !packet)
		return TC_ACT_UNSPEC;
	if (egress_done(skb, settings)) {
		if (hook == HOOK_EGRESS)
			return TC_ACT_UNSPEC;
		egress_done_forget(skb);
	}
	switch (parse(skb, l2, hook, settings, packet)) {
	case PARSED:
		/*
		 * Few interfaces have no link layer header: their programs leave more to the
		 * steps.
		 */
		return handle(skb, settings, packet, hook, l2 != 0);
	case PARSED_SLOWLY:
		return tail_call_unparsed(skb, packet);
	case PARSED_FAST:
		return may_be_fast ? walk_fast(skb, settings, packet) : TC_ACT_UNSPEC;
	case PARSED_DIRECT:
		return may_be_fast ? fast_path_direct(skb, settings, packet) : TC_ACT_UNSPEC;
	default:
		return TC_ACT_UNSPEC;
	}
}

int ingress(struct __sk_buff *skb)
{
	return walk(skb, ETH_HLEN, HOOK_INGRESS);
}

int egress(struct __sk_buff *skb)
{
	return walk(skb, ETH_HLEN, HOOK_EGRESS);
}

/* The same for interfaces without a link layer header: tun, ipip, wireguard. */
int ingress_l3(struct __sk_buff *skb)
{
	return walk(skb, 0, HOOK_INGRESS);
}

int egress_l3(struct __sk_buff *skb)
{
	return walk(skb, 0, HOOK_EGRESS);
}

/* A first packet: which backend it goes to. */
int step_first(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();

	return settings && packet ? first_packet(skb, settings, packet) : TC_ACT_SHOT;
}

/* A first packet to an address that keeps its backends, or that may spill over to more. */
int step_schedule(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? first_packet_schedule(skb, packet) : TC_ACT_SHOT;
}

/* A first packet that may be the trial of a backend. */
int step_trial(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? first_packet_try(skb, packet) : TC_ACT_SHOT;
}

/* A first packet whose backend is chosen: the entries for the packets that follow. */
int step_open(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();

	return settings && packet ? first_packet_open(skb, settings, packet) : TC_ACT_SHOT;
}

/* A first packet from outside to a backend's own address, whose route is known. */
int step_untranslated(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? untranslated_first(skb, packet) : TC_ACT_SHOT;
}

/* A packet of a known connection whose state needs more work. */
int step_established(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();

	return settings && packet ? conn_established_rare(skb, settings, packet) : TC_ACT_SHOT;
}

/* A packet of a connection of which it has to be noted how the attempt to open it ends. */
int step_attempt(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? attempt_step(skb, packet) : TC_ACT_SHOT;
}

/* The first packet of a masqueraded connection leaves: a port is chosen. */
int step_masquerade(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? masquerade_first(skb, packet) : TC_ACT_SHOT;
}

/* An ICMP error, which quotes a packet. */
int step_icmp(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();

	return settings && packet ? translate_icmp_error(skb, settings, packet) : TC_ACT_SHOT;
}

/* A packet with IPv6 extension headers, or a fragment: parsed anew. */
int step_parse_slow(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();
	int verdict;

	if (!settings || !packet)
		return TC_ACT_UNSPEC;
	switch (parse_slow(skb, packet)) {
	case PARSED:
		verdict = handle(skb, settings, packet, packet->flow.hook, false);
		break;
	case PARSED_EARLY:
		if (fragment_may_wait(packet))
			return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
		return TC_ACT_UNSPEC;
	default:
		verdict = TC_ACT_UNSPEC;
	}
	fragment_passed(packet);
	return verdict;
}

/* A fragment, or SCTP: how it is rewritten. */
int step_rewrite(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? rewrite_rare(skb, packet) : TC_ACT_SHOT;
}

/* A packet of another step that takes the fast path. */
int step_fast_path(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? leave(skb, packet, packet->forward.via, NULL) : TC_ACT_SHOT;
}

/* A first packet that is refused. */
int step_reject(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? reject(skb, packet) : TC_ACT_SHOT;
}

/* An echo request to an address of a Service that is served. */
int step_echo(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? answer_echo(skb, packet) : TC_ACT_SHOT;
}

/* XDP: a packet from outside for a backend elsewhere, before the kernel has made an skb of it. */
int xdp(struct xdp_md *context)
{
	return xdp_handle(context);
}

/* Run by the agent: remove connections that are over. */
int gc(struct __sk_buff *skb)
{
	return gc_flows(skb);
}

/* Run by the agent: correct the loads of backends. */
int recount(struct __sk_buff *skb)
{
	return recount_request(skb);
}

/* Run by `bpfsvc explain`: what would become of a first packet. */
int explain(struct __sk_buff *skb)
{
	return explain_question(skb);
}

/* Sockets of the node and of its pods, by IPv4 and IPv6. */
int connect4(struct bpf_sock_addr *context)
{
	return socket_forward(context, true, true);
}

int connect6(struct bpf_sock_addr *context)
{
	return socket_forward(context, false, true);
}

int sendmsg4(struct bpf_sock_addr *context)
{
	return socket_forward(context, true, false);
}

int sendmsg6(struct bpf_sock_addr *context)
{
	return socket_forward(context, false, false);
}

int recvmsg4(struct bpf_sock_addr *context)
{
	return socket_reverse(context, true);
}

int recvmsg6(struct bpf_sock_addr *context)
{
	return socket_reverse(context, false);
}

int getpeername4(struct bpf_sock_addr *context)
{
	return socket_reverse(context, true);
}

int getpeername6(struct bpf_sock_addr *context)
{
	return socket_reverse(context, false);
}

/* Any socket of processes is closed by the last of them. */
int release(struct bpf_sock *context)
{
	return socket_end(context);
}

/* What happens to TCP sockets; attached while a Service asks for it. */
int sockops(struct bpf_sock_ops *context)
{
	return socket_attempt_follow(context);
}
