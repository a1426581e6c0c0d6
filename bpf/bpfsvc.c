/*
 * Every entry point, in the order in which a packet meets them. Each interface runs `ingress` on
 * what it receives and `egress` on what it sends; between the two, the kernel routes an ordinary
 * packet from client to backend. XDP, the programs that the agent runs, and the programs of sockets
 * follow at the end.
 *
 * Steps are programs for what few packets need, reached by tail calls. STEP_X is `step_x`, in
 * path/step/x.h. They find the packet in struct packet (path/packet.h): `headers` are its fields up
 * to `tcp_acknowledged`. "hooks" are ingress, egress, ingress_l3 and egress_l3, which write these,
 * `after` and `forward`. REPLACED are the hooks of the build that is being replaced
 * (settings.takeover).
 *
 *	step		jumped to by			reads			writes
 *
 *	FIRST		hooks, PARSE_SLOW, SCHEDULE,	headers			first, after, reuse,
 *			ATTEMPT, itself						passes_egress
 *	SCHEDULE	FIRST				flow, first.client	(map schedule_works)
 *	REVISE		FIRST				flow, first		first.choice
 *	OPEN		FIRST, REVISE, itself		headers, first, search	after, forward,
 *									search, first
 *	UNTRANSLATED	OPEN				headers, after, first,	forward.hop
 *							forward
 *	ATTEMPT		hooks, PARSE_SLOW		headers			reuse
 *	ESTABLISHED	hooks, PARSE_SLOW, FIRST,	headers			after, forward.via
 *			ATTEMPT, OPEN,
 *			UNTRANSLATED, MASQUERADE
 *	MASQUERADE	ESTABLISHED, FIRST, itself	headers, search		search, forward
 *	FAST_PATH	OPEN, ESTABLISHED		headers, after, forward	after, forward
 *	REWRITE		hooks, PARSE_SLOW, OPEN,	headers, after,		forward
 *			ESTABLISHED, FAST_PATH		forward.via
 *	ICMP		hooks, PARSE_SLOW		headers			after, forward,
 *										passes_egress
 *	PARSE_SLOW	hooks				flow.hook, l3, v4	as the hooks
 *	REJECT		FIRST, REVISE			headers, first		l3, l4
 *	ECHO		FIRST				headers			l3, l4
 *	REPLACED	hooks, PARSE_SLOW, FIRST,	flow.hook, l3
 *			ESTABLISHED
 */
#include "lib/flow.h"
#include "lib/verifier.h"
#include "lib/wire.h"
#include "maps/backend_failures.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/metadata.h"
#include "maps/settings.h"
#include "path/agent/explain.h"
#include "path/agent/gc.h"
#include "path/agent/recount.h"
#include "path/conn/attempts.h"
#include "path/conn/elsewhere.h"
#include "path/conn/established.h"
#include "path/fast/direct.h"
#include "path/fast/fast_path.h"
#include "path/fragments.h"
#include "path/hook/passing.h"
#include "path/hook/triage.h"
#include "path/marks.h"
#include "path/packet.h"
#include "path/socket/attempts.h"
#include "path/socket/counts.h"
#include "path/socket/connect_time.h"
#include "path/socket/failures.h"
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
#include "path/step/revise.h"
#include "path/step/rewrite.h"
#include "path/step/schedule.h"
#include "path/step/untranslated.h"
#include "path/tail_calls.h"
#include "path/xdp/forward.h"

/* Forward a packet of a fast flow; a SYN that opens none after all takes the steps. */
static inline int handle_fast_flow(struct __sk_buff *skb, const struct settings *settings,
				   struct packet *packet)
{
	int verdict = fast_path_go_on(skb, settings, packet);

	if (verdict == TC_ACT_UNSPEC && tcp_opens(packet->tcp_flags))
		return tail_call_unparsed(skb, packet);
	return verdict;
}

/*
 * Do with a packet what its kind asks for. `l2`: the bytes of its link layer header. Few interfaces
 * have none: their programs leave all connections to the steps, and so does STEP_PARSE_SLOW.
 */
static inline int handle(struct __sk_buff *skb, const struct settings *settings,
			 struct packet *packet, __u8 hook, __u32 l2, enum kind kind,
			 struct connection *entry)
{
	/* Triage returns those kinds at no other place: the compiler need not know why. */
	bool may_be_fast = hook == HOOK_INGRESS && l2 == ETH_HLEN;
	struct connection *leaving = NULL;

	switch (kind) {
	case KIND_CONNECTION:
		if (!l2 || conn_established_is_rare(entry, hook, packet->tcp_flags))
			return tail_call(skb, established_step(entry, packet->tcp_flags));
		packet_go_by(skb, settings, packet, hook, entry);
		if (!conn_established_advance(skb, settings, packet, entry))
			return incomplete_verdict(skb, settings, packet);
		if (hook == HOOK_INGRESS && packet->forward.via == BY_STACK &&
		    leaves_as_routed(settings, packet, entry))
			egress_done_note(skb, settings);
		break;
	case KIND_REPLY:
		packet->forward.via = fast_path_reply_via(settings, entry);
		if (!l2)
			return tail_call(skb, STEP_REWRITE);
		leaving = entry;
		break;
	case KIND_FAST_FLOW:
		return may_be_fast ? handle_fast_flow(skb, settings, packet) : TC_ACT_UNSPEC;
	case KIND_DIRECT:
		return may_be_fast ? fast_path_direct(skb, settings, packet) : TC_ACT_UNSPEC;
	case KIND_FIRST:
		return tail_call_unknown(skb, packet, STEP_FIRST);
	case KIND_ICMP_ERROR:
		return tail_call_unknown(skb, packet, STEP_ICMP);
	case KIND_UNUSUAL:
		return tail_call_unparsed(skb, packet);
	case KIND_HALF:
		if (settings->takeover)
			tail_call_replaced(skb, packet);
		COUNT(dropped__unknown_connection);
		return TC_ACT_SHOT;
	default:
		return TC_ACT_UNSPEC;
	}
	AS_IN_MEMORY();
	return leave(skb, packet, hook == HOOK_INGRESS ? packet->forward.via : BY_STACK, leaving);
}

static inline int walk(struct __sk_buff *skb, __u32 l2, __u8 hook)
{
	struct settings *settings = settings_get();
	struct connection *entry = NULL;
	struct packet *packet;
	enum kind kind;

	if (!settings || (l2 == ETH_HLEN && passes_at_once(skb, settings, hook)))
		return TC_ACT_UNSPEC;
	packet = packet_get();
	if (!packet)
		return TC_ACT_UNSPEC;
	if (settings->takeover == TAKEOVER_ATTACHING) {
		packet->flow.hook = hook;
		packet->l3 = l2;
		tail_call_replaced(skb, packet);
	}
	if (egress_done(skb, settings)) {
		if (hook == HOOK_EGRESS)
			return TC_ACT_UNSPEC;
		egress_done_forget(skb);
	}
	kind = triage_by_headers(skb, l2, hook, settings, packet);
	if (kind == KIND_UNDECIDED)
		kind = triage_by_entries(skb, settings, packet, hook, !l2, &entry);
	return handle(skb, settings, packet, hook, l2, kind, entry);
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

/* A first packet: choose its backend, refuse it, or let it pass. */
int step_first(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();

	return settings && packet ? first_packet(skb, settings, packet) : TC_ACT_SHOT;
}

/* A first packet to an address that keeps its backends, or to a service port that may overflow. */
int step_schedule(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? first_packet_schedule(skb, packet) : TC_ACT_SHOT;
}

/* A first packet that may need another backend than the one that was chosen. */
int step_revise(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? first_packet_revise(skb, packet) : TC_ACT_SHOT;
}

/* A first packet that has a backend: write the entries for the packets that follow. */
int step_open(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();

	return settings && packet ? first_packet_open(skb, settings, packet) : TC_ACT_SHOT;
}

/* A first packet from outside to a backend's own address. Its route is known. */
int step_untranslated(struct __sk_buff *skb)
{
	struct packet *packet = packet_get();

	return packet ? untranslated_first(skb, packet) : TC_ACT_SHOT;
}

/* A packet of a connection, if the state of the connection needs more than an update. */
int step_established(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct packet *packet = packet_get();

	return settings && packet ? conn_established_rare(skb, settings, packet) : TC_ACT_SHOT;
}

/* A packet of a connection, while its connect result is not recorded yet (quarantine). */
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
	struct connection *entry = NULL;
	enum kind kind;
	int verdict;
	__u8 hook;

	if (!settings || !packet)
		return TC_ACT_UNSPEC;
	kind = parse_slow(skb, packet);
	if (kind == KIND_EARLY)
		return fragment_may_wait(packet) ? bpf_redirect(skb->ifindex, BPF_F_INGRESS) :
						   TC_ACT_UNSPEC;
	hook = packet->flow.hook;
	if (kind == KIND_UNDECIDED)
		kind = triage_by_entries(skb, settings, packet, hook, true, &entry);
	verdict = handle(skb, settings, packet, hook, 0, kind, entry);
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

/* A TCP socket of this machine sends a segment again (tracepoint tcp_retransmit_skb). */
int syn_again(struct raw_tracepoint *context)
{
	return socket_sends_again(context);
}

/* A TCP socket of this machine gets a reset (tracepoint tcp_receive_reset). */
int syn_refused(struct raw_tracepoint *context)
{
	return socket_is_reset(context);
}

/* The state of a TCP socket of this machine changes (tracepoint inet_sock_set_state). */
int socket_state(struct raw_tracepoint *context)
{
	return socket_state_follow(context);
}

/* The kernel drops a packet (tracepoint kfree_skb); attached while somebody asks. */
int dropped(struct raw_tracepoint *context)
{
	return tell_dropped(context);
}
