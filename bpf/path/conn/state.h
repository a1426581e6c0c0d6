/* The state of a connection: how each packet brings it forward. */
#pragma once

#include "lib/flow.h"
#include "lib/parse.h"
#include "lib/tcp_options.h"
#include "lib/wire.h"
#include "maps/closed_flows.h"
#include "maps/connections.h"
#include "maps/counters.h"
#include "maps/half_open.h"
#include "maps/settings.h"
#include "path/packet.h"

/*
 * Return the time of a clock that costs very little: ticks of 0.1 s to 1 s, depending on
 * CONFIG_HZ.
 */
static inline __u16 tick_now(void)
{
	return bpf_jiffies64() >> 7;
}

static inline void state_begin_anew(struct connection *connection)
{
	connection->fin_sent = connection->fin_received = connection->reset = 0;
	connection->client_first = 0;
	connection->acknowledged = connection->window = 0;
}

/*
 * True if a SYN goes on with the attempt that its client has just reset. The backend has not
 * answered that attempt by SYN and ACK, but by an ACK about a half-open connection of before, by the
 * same port: the client resets that, and repeats its SYN, at once or after a second. Now the port is
 * free at this backend. By another port the SYN could meet another such connection.
 */
static inline bool attempt_goes_on(const struct connection *connection)
{
	return !connection->reply && !connection->established &&
	       connection->reset == (RESET_CERTAIN | RESET_BY_CLIENT) &&
	       connection_idle(connection, bpf_ktime_get_coarse_ns()) <
		       LINGER_SECONDS * NS_PER_SECOND;
}

/* Reopen both entries of a closed pair, with the same translation. */
static inline void connection_reopen(const struct flow *flow, struct connection *connection)
{
	struct connection *other;
	struct flow partner;

	other = partner_find(&partner, flow, connection);
	state_begin_anew(connection);
	load_follow(flow->protocol, connection);
	if (!other)
		return;
	state_begin_anew(other);
	load_follow(flow->protocol, other);
}

#define TCP_LONGEST_SEGMENT (1 << 19) /* as offloads put them together */
#define TCP_USUAL_PROGRESS (1 << 20)  /* of acknowledgements, from one packet to the next */

/* True if it is known which sequence number the sender of this direction expects next. */
static inline bool progress_known(const struct connection *receiver)
{
	return receiver && (receiver->acknowledged | receiver->window);
}

/*
 * True if what a packet acknowledges needs no other proof: it continues what its sender has
 * acknowledged before. Any other packet has to prove itself by its sequence number: if forged
 * packets changed what is expected next, the genuine end of the connection would be far from that.
 * A SYN begins both numbers anew.
 */
static inline bool progress_is_usual(const struct connection *connection, __u8 tcp_flags,
				     __be32 acknowledged)
{
	__u32 progress = bpf_ntohl(acknowledged) - bpf_ntohl(connection->acknowledged);

	return progress + TCP_USUAL_PROGRESS <= 2 * TCP_USUAL_PROGRESS || tcp_flags & TCP_SYN ||
	       !connection->established || !progress_known(connection);
}

/*
 * Compute how far the sequence number of a packet is from the one that its receiver expects next:
 * `ahead`. `window`: how far it may be. False if it cannot be read.
 */
static inline bool segment_place(struct __sk_buff *skb, const struct packet *packet,
				 const struct connection *receiver, __s32 *ahead, __u32 *window)
{
	__u8 shift = TCP_MAX_WINDOW_SHIFT;
	__be32 sequence;

	if (bpf_skb_load_bytes(skb, packet->l4 + TCP_SEQUENCE_OFFSET, &sequence, sizeof(sequence)))
		return false;
	if (receiver->window_shift)
		shift = receiver->window_shift - 1;
	*ahead = bpf_ntohl(sequence) - bpf_ntohl(receiver->acknowledged);
	*window = (__u32)bpf_ntohs(receiver->window) << (shift & 0xf);
	return true;
}

/*
 * Judge a reset by the numbers that netfilter compares, too. One in the middle of a connection ends
 * it only if its sequence number is the one that its receiver expects next; so it is unless data
 * are on their way. Elsewhere in the receiver's window it may be genuine: a receiver that does not
 * take it answers (RFC 5961, 3.2), and that answer revives the connection. Any other is forged, or
 * late, and its receiver ignores it.
 */
static inline __u8 reset_judged(struct __sk_buff *skb, const struct packet *packet,
				const struct connection *connection,
				const struct connection *receiver)
{
	__u32 window;
	__s32 ahead;

	if (!connection->established || !progress_known(receiver) ||
	    !segment_place(skb, packet, receiver, &ahead, &window) || !ahead)
		return RESET_CERTAIN;
	/*
	 * The server refuses a SYN that reused the ports, by a reset of sequence 0: it no longer
	 * knows the connection.
	 */
	if (connection->reply && packet->tcp_flags & TCP_ACK &&
	    ahead + bpf_ntohl(receiver->acknowledged) == 0)
		return RESET_CERTAIN;
	return (__u32)ahead < window ? RESET_DOUBTED : RESET_NONE;
}

/*
 * True if a segment may be genuine. It may repeat data, and a window may shrink, so this is not as
 * strict: if a genuine FIN did not count, its connection would stay for a day. Before a server has
 * answered, its client has nothing to close. (A server may close before its client acknowledges
 * the answer: RFC 7413. And an answer may have been noted by an older build: its numbers are not
 * copied.)
 */
static inline bool segment_counts(struct __sk_buff *skb, const struct packet *packet,
				  const struct connection *connection,
				  const struct connection *receiver)
{
	__u32 window;
	__s32 ahead;

	if (!progress_known(receiver))
		return !receiver || connection->reply || receiver->replied;
	return !segment_place(skb, packet, receiver, &ahead, &window) ||
	       (ahead >= -TCP_LONGEST_SEGMENT && ahead <= (__s64)window * 2 + TCP_LONGEST_SEGMENT);
}

static inline void progress_note(struct connection *connection, const struct packet *packet)
{
	if (!(packet->tcp_flags & TCP_ACK))
		return;
	connection->acknowledged = packet->tcp_acknowledged;
	connection->window = packet->tcp_window;
}

static inline void client_first_note(struct connection *connection, struct connection *other,
				     __u8 client_first)
{
	connection->client_first = client_first;
	if (other)
		other->client_first = client_first;
}

/* Note a FIN in both entries. */
static inline void fin_note(struct connection *connection, struct connection *other)
{
	if (connection->reply && connection->fin_received && !connection->fin_sent)
		client_first_note(connection, other, 1);
	connection->fin_sent = 1;
	if (other)
		other->fin_received = 1;
}

/*
 * True if a packet begins a connection again, and so shows nothing of its backend. A client that
 * always uses the same port would stay with a dead backend for as long as it tries, if such packets
 * renewed its entry. Answers of the server renew theirs, so that the pair is kept.
 */
static inline bool begins_again(struct __sk_buff *skb, const struct packet *packet,
				const struct connection *connection)
{
	if (packet->flow.protocol == PROTO_SCTP)
		return sctp_opens(skb, packet->l4);
	return tcp_opens(packet->tcp_flags) && !connection->established;
}

static inline void time_note(struct __sk_buff *skb, const struct packet *packet,
			     struct connection *connection)
{
	__u16 tick = tick_now();
	__u64 now;

	if (tick == connection->tick || begins_again(skb, packet, connection))
		return;
	connection->tick = tick;
	now = bpf_ktime_get_coarse_ns();
	if (now - connection->seen > NS_PER_SECOND)
		connection->seen = now;
}

/*
 * A packet closes a connection: it is the second FIN, or a RESET_CERTAIN. This is called once for
 * each pair of entries, with the entry of the packet, before the packet changes both; and again if
 * the pair was opened anew. (If two FINs come at the same moment on two CPUs, it may not be called:
 * at most one of them is then the second. If a reset is one of two such packets, it may be called
 * twice.)
 */
static inline void connection_closed_note(struct flow *flow, const struct connection *connection)
{
	/* The pair between the hooks leads to the pair around the wire. */
	if (!(connection->service && connection_around_wire(flow, connection)))
		closed_flow_put(flow, bpf_ktime_get_coarse_ns());
}

/*
 * True if a packet changes nothing but what its sender acknowledges. (An entry of SCTP has a tag in
 * place of a number.)
 */
static inline bool packet_is_usual(const struct packet *packet, const struct connection *connection)
{
	return !tcp_ends(packet->tcp_flags) &&
	       (progress_is_usual(connection, packet->tcp_flags, packet->tcp_acknowledged) ||
		packet->flow.protocol != PROTO_TCP);
}

/*
 * Note the time, what the packet acknowledges, and FIN and RST in both entries of the pair, so that
 * each has the whole state.
 */
static inline void connection_track(struct __sk_buff *skb, const struct packet *packet,
				    struct flow *flow, struct connection *connection)
{
	__u8 tcp_flags = packet->tcp_flags, reset;
	struct connection *other;
	struct flow partner;
	bool usual;

	time_note(skb, packet, connection);
	/* Most packets end here, before another entry is looked up. */
	usual = packet_is_usual(packet, connection);
	if (usual)
		progress_note(connection, packet);
	if (usual && !(connection->reset & RESET_DOUBTED) && !connection->client_first)
		return;
	other = partner_find(&partner, flow, connection);
	if (tcp_flags & TCP_RST) {
		reset = reset_judged(skb, packet, connection, other);
		if (reset == RESET_NONE || connection->reset & RESET_CERTAIN)
			return;
		if (reset == RESET_CERTAIN && !connection_closed(connection))
			connection_closed_note(flow, connection);
		if (!connection->reply)
			reset |= RESET_BY_CLIENT;
	} else {
		if (!segment_counts(skb, packet, connection, other))
			return;
		progress_note(connection, packet);
		reset = connection->reset;
		if (reset & RESET_DOUBTED && !tcp_opens(tcp_flags))
			reset = RESET_NONE;
	}
	connection->seen = bpf_ktime_get_coarse_ns();
	connection->reset = reset;
	if (other)
		other->reset = reset;
	if (!(tcp_flags & TCP_FIN)) {
		/* Their FINs have crossed: else a backend has nothing to say after its own. */
		if (connection->reply)
			client_first_note(connection, other, 0);
	} else {
		if (connection->fin_received && !connection_closed(connection))
			connection_closed_note(flow, connection);
		fin_note(connection, other);
	}
	load_follow(flow->protocol, connection);
	if (other)
		load_follow(flow->protocol, other);
}

/*
 * Remove an entry without a partner: nothing would translate the other direction. While entries of
 * another build are copied, the partner is only not copied yet.
 */
static inline void connection_forget_half(struct flow *flow, struct connection *connection)
{
	struct settings *settings = settings_get();

	if (settings && settings->takeover)
		return;
	COUNT(dropped__evicted);
	if (connection->held)
		half_open_release();
	load_leave(connection);
	entry_delete(flow);
}

/*
 * Move a pair to `connections`, where nothing is evicted. `flow` is the key of the client's packets:
 * of two CPUs that move a pair, the one that inserts this key goes on, and the other leaves it the
 * pair. Meanwhile the pair may be removed, or an entry evicted: that shows in what there is to be
 * deleted at the end, because entry_delete() deletes in the same order. Then the copies go, too.
 * False then, or when there is no room: the packet is dropped.
 */
static inline bool connection_move(struct flow *flow, struct connection *connection,
				   struct flow *partner, struct connection *other)
{
	int error = connections.insert(flow, connection), other_error = 0;

	if (error == -EEXIST)
		return true;
	if (!error)
		other_error = connections.insert(partner, other);
	if (!(error | other_error)) {
		if (!(new_connections.delete(partner) | new_connections.delete(flow)))
			return true;
		connections.delete(partner);
		connections.delete(flow);
		COUNT(dropped__evicted);
		return false;
	}
	/* The packet may be sent again, and find room. */
	connection->established = other->established = 0;
	if (!error)
		connections.delete(flow);
	count_no_room(error | other_error);
	return false;
}

/*
 * Establish a connection, after packets of both sides; a SYN establishes none. False when an entry
 * is missing or there is no room; the packet must then be dropped, because the rest of its flow
 * would not be translated. The client's next SYN opens a connection whose entries are both there.
 */
static inline bool connection_establish(struct flow *flow, struct connection *connection,
					__u8 tcp_flags)
{
	struct connection *other;
	struct flow partner;

	other = partner_find(&partner, flow, connection);
	if (!other) {
		connection_forget_half(flow, connection);
		return false;
	}
	/* Or the client acknowledges, but no packet of the server has been seen. */
	if (tcp_flags & TCP_SYN || (!connection->reply && !other->replied))
		return true;
	connection->replied = other->replied = 1;
	connection->established = other->established = 1;
	connection->reset = other->reset = RESET_NONE;
	load_follow(flow->protocol, connection->reply ? other : connection);
	if (connection->held) {
		connection->held = other->held = 0;
		half_open_release();
		return true;
	}
	/* Another CPU may have moved the pair, or just counted it: then the copy is there already. */
	return connection->reply ? connection_move(&partner, other, flow, connection) :
				   connection_move(flow, connection, &partner, other);
}

/*
 * True for a datagram of a server that has answered before, for longer than a question and its
 * answer take: a stream, to a client that says no more.
 */
static inline bool datagram_of_stream(const struct flow *flow, const struct connection *connection)
{
	return flow->protocol == PROTO_UDP && connection->replied &&
	       bpf_ktime_get_coarse_ns() - connection->created >= STREAM_SECONDS * NS_PER_SECOND;
}

/*
 * Handle the state of a flow that is not established. Only what the client sends after an answer
 * shows that its source address is not forged; half-open connections must not take room from
 * others. False if the packet must be dropped.
 */
static inline bool connection_progress(struct flow *flow, struct connection *connection,
				       __u8 tcp_flags)
{
	if (tcp_flags & TCP_RST)
		return true;
	if (connection->reply && !datagram_of_stream(flow, connection)) {
		struct connection *other;
		struct flow partner;

		/* XDP reads `replied` of the client's entry, of UDP. */
		if (!connection->held || flow->protocol == PROTO_UDP) {
			other = partner_find(&partner, flow, connection);
			if (!other) {
				connection_forget_half(flow, connection);
				return false;
			}
			other->replied = 1;
		}
		connection->replied = 1;
		return true;
	}
	return connection_establish(flow, connection, tcp_flags);
}
