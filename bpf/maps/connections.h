/*
 * Connections: what each direction of a translated flow looks like at a hook, and what it must
 * look like after it. Entries come in pairs, forward and reply, and the key of each follows from
 * the other:
 *
 *	ingress  client -> frontend            becomes  client -> backend
 *	egress   backend -> client             becomes  frontend -> client
 *
 * and, for a masqueraded connection, a second pair around the wire:
 *
 *	egress   client -> backend             becomes  node -> backend
 *	ingress  backend -> node               becomes  backend -> client
 *
 * A flow is established when both sides have answered each other: when the client has acknowledged
 * the server's SYN, or sends another datagram after the first reply; also when a server's datagrams
 * go on for STREAM_SECONDS to a client that is silent. Nothing is evicted from `connections`. While
 * flows that are not established are few, they are held there too, which costs them least. Those
 * beyond that live in `new_connections`, from which the kernel evicts, until they are established
 * and move. A flood of first packets, though every one be answered, can so push out other first
 * packets, but never a connection that works.
 */
#pragma once

#include "lib/flow.h"
#include "lib/map.h"
#include "lib/pair_count.h"
#include "lib/wire.h"
#include "maps/backend_loads.h"
#include "maps/half_open.h"
#include "maps/port_filter.h"
#include "maps/untranslated.h"

struct connection {
	struct flow after;
	__u64 created;	/* ns, CLOCK_MONOTONIC */
	__u64 seen;	/* the same, to about a second */
	__u32 service;	/* 0: none. The entry is of a direct flow that got another port */
	__u32 counters; /* of the backend; 0: not counted by this entry */
	__u8 reply;
	__u8 replied; /* a packet of the server has been seen */
	__u8 established;
	__u8 fin_sent; /* by the sender of this direction */
	__u8 fin_received;
	__u8 reset;	 /* of enum reset */
	__u8 masquerade; /* of enum masquerade: this forward flow is masqueraded when it leaves */
	__u8 masquerade_pending; /* `after` is chosen when the first packet leaves */
	__u8 held;		 /* in `connections`, not established, and counted */
	__u8 stack_turn; /* the turn, see path/xdp/forward.h, in which XDP passes it to the stack */
	/*
	 * Of the kernel's coarsest clock, when `seen` was last considered. While a masquerade is
	 * pending: where the search for its port begins.
	 */
	__u16 tick;
	/*
	 * The interface where packets of the fast path come in; 0: they take the stack. (The name
	 * is older than the fast path's. Under another name, all entries of an older build would
	 * have to be copied, and would lose the value.)
	 */
	__u32 shortcut;
	/*
	 * Of TCP: what the sender of this direction said last about the other one. Of SCTP: see
	 * path/conn/association.h.
	 */
	__be32 acknowledged;
	__be16 window;
	__u8 window_shift; /* of its window, plus one; 0: not known */
	__u8 counted;	   /* of enum counted, where the client's packets find their backend */
	__u8 outside;	   /* of enum outside */
	__u8 client_first; /* both have sent a FIN, the backend after it had seen the client's */
	__u8 watched; /* of enum watched, until it is known how the attempt ends (step/attempt.h) */
	__u8 zero;
	/*
	 * Its time beyond `created`, in units of 1024 ns, plus one (maps/events.h). 0: it is not
	 * observed.
	 */
	__u16 observed;
	__u8 zeros[2];
};

/* Whether a connection is in the load of its backend. */
enum counted {
	COUNTED = 1,
	COUNTED_INACTIVE = 2, /* as an inactive one */
};

/* Whether a flow is masqueraded when it leaves; 0: it is not. */
enum masquerade {
	MASQUERADE = 1,
	/*
	 * And the pair around the wire has been written again. It has not seen the whole
	 * connection, so it may be closed, and go, before the connection is.
	 */
	MASQUERADE_AGAIN = 2,
};

/* Whether one end is no pod, and packets take the fast path; see path/fast/fast_path.h. */
enum outside {
	OUTSIDE = 1,
	OUTSIDE_UNTRANSLATED = 2, /* and its entries change nothing; they are counted */
};

/* Whether a connection has been reset: bits. */
enum reset {
	RESET_NONE = 0,
	RESET_CERTAIN = 1,
	RESET_DOUBTED = 2,   /* perhaps: it lives on if another packet comes */
	RESET_BY_CLIENT = 4, /* with either of them; without it: by the backend */
};

/* netfilter, too, takes UDP for a stream when packets still come after this time. */
#define STREAM_SECONDS 2

MAP("hash", struct flow, struct connection, connections, MAX_CONNECTIONS, BPF_F_NO_PREALLOC);
MAP("lru_hash", struct flow, struct connection, new_connections, MAX_NEW_CONNECTIONS, 0);

/* A flow that has been silent for so long may lose its port to another flow. */
enum {
	UNANSWERED_SECONDS = 5, /* if it is not established */
	LINGER_SECONDS = 2,	/* if both sides have closed it */
	/* Or if the backend does not remember it: long enough for a lost FIN to be sent again. */
	LINGER_MS = 500,
	/*
	 * A Linux peer that closed a connection first remembers the connection for this time. It
	 * may refuse another one from the same port (RFC 7323: if the timestamps look older). The
	 * client's kernel knows this of its own ports. No kernel knows it of ports that are chosen
	 * here.
	 */
	TIME_WAIT_SECONDS = 60,
};

static inline bool connection_closed(const struct connection *connection)
{
	return connection->reset & RESET_CERTAIN ||
	       (connection->fin_sent && connection->fin_received);
}

/* True for entries of the pair around the wire, of a masqueraded connection. */
static inline bool connection_around_wire(const struct flow *flow,
					  const struct connection *connection)
{
	return (flow->hook == HOOK_EGRESS) != connection->reply;
}

/*
 * True if the backend may remember a closed connection: unless it has closed it second (RFC 9293,
 * 3.6). Of connections that an older build has seen end, nothing is known.
 */
static inline bool connection_is_remembered(const struct connection *connection)
{
	return connection->fin_sent && connection->fin_received && !connection->reset &&
	       !connection->client_first;
}

/* The same of one by a port that was chosen here. */
static inline bool connection_in_time_wait(const struct flow *flow,
					   const struct connection *connection)
{
	return connection_is_remembered(connection) && connection_around_wire(flow, connection);
}

/*
 * Nanoseconds since the last packet; negative when another CPU has seen one after `now` was read.
 */
static inline __s64 connection_idle(const struct connection *connection, __u64 now)
{
	return now - connection->seen;
}

/*
 * True for what ip_vs calls inactive: TCP that is closing, UDP, and SCTP before it is established.
 */
static inline bool connection_inactive(__u8 protocol, const struct connection *connection)
{
	if (connection->fin_sent || connection->fin_received || connection->reset & RESET_CERTAIN)
		return true;
	return protocol != PROTO_TCP && (protocol != PROTO_SCTP || !connection->established);
}

/*
 * Change bits of `counted`, and return all as they were: of several CPUs that do so, one has made
 * the change. Atomic operations are on 8 bytes, and leave the others of those as they are. Without
 * atomics several CPUs may each have made the change: the load is then wrong until it is recounted.
 */
#define COUNTED_AT __builtin_offsetof(struct connection, counted)
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define COUNTED_SHIFT (COUNTED_AT % 8 * 8)
#else
#define COUNTED_SHIFT (56 - COUNTED_AT % 8 * 8)
#endif

static inline __u8 counted_set(struct connection *connection, __u64 bits)
{
	__u64 *word = (void *)connection + COUNTED_AT / 8 * 8;

	__u8 old = connection->counted;

	if (LOADED_NUMBER(ATOMICS))
		return __sync_fetch_and_or(word, bits << COUNTED_SHIFT) >> COUNTED_SHIFT;
	connection->counted = old | bits;
	return old;
}

static inline __u8 counted_clear(struct connection *connection, __u64 bits)
{
	__u64 *word = (void *)connection + COUNTED_AT / 8 * 8;

	__u8 old = connection->counted;

	if (LOADED_NUMBER(ATOMICS))
		return __sync_fetch_and_and(word, ~(bits << COUNTED_SHIFT)) >> COUNTED_SHIFT;
	connection->counted = old & ~bits;
	return old;
}

/*
 * Add a new connection that is `counted` to the load of its backend. This is before its entry can
 * be found: who finds it may take it back.
 */
static inline void load_enter(__u8 protocol, struct connection *connection)
{
	bool inactive = connection_inactive(protocol, connection);

	if (!connection->counted)
		return;
	load_add(connection->counters, !inactive, inactive);
	connection->counted = inactive ? COUNTED | COUNTED_INACTIVE : COUNTED;
}

/* Have the load of the backend follow the state of a connection. */
static inline void load_follow(__u8 protocol, struct connection *connection)
{
	bool inactive;

	if (!connection->counted)
		return;
	inactive = connection_inactive(protocol, connection);
	if (inactive == !!(connection->counted & COUNTED_INACTIVE))
		return;
	if (inactive && counted_set(connection, COUNTED_INACTIVE) == COUNTED)
		load_add(connection->counters, -1, 1);
	if (!inactive &&
	    counted_clear(connection, COUNTED_INACTIVE) == (COUNTED | COUNTED_INACTIVE))
		load_add(connection->counters, 1, -1);
}

/* Take a connection out of the load of its backend: its entry is about to go. */
static inline void load_leave(struct connection *connection)
{
	__u8 counted;

	if (!connection->counted)
		return;
	counted = counted_clear(connection, COUNTED | COUNTED_INACTIVE);
	if (counted & COUNTED)
		load_add(connection->counters, counted & COUNTED_INACTIVE ? 0 : -1,
			 counted & COUNTED_INACTIVE ? -1 : 0);
}

static inline struct connection *connection_find(struct flow *flow)
{
	struct port_filter *filter = port_filter_find(flow->hook, flow->protocol, flow->source_port,
						      flow->destination_port);
	struct connection *connection;

	if (!filter)
		return NULL;
	connection = connections.lookup(flow);
	if (connection || !filter->overflowed)
		return connection;
	connection = new_connections.lookup(flow);
	/* Another CPU may have moved it between the two look-ups. */
	return connection ? connection : connections.lookup(flow);
}

/*
 * Insert an entry of a flow that is not established: inserting decides which of two flows gets the
 * key. Nonzero if there is an entry of that key, or if the table or the memory is full.
 */
static inline int connection_take(struct flow *flow, struct connection *connection)
{
	int error;

	port_filter_note(flow, connection->reply, !connection->held);
	if (connection->held)
		return connections.insert(flow, connection);
	error = new_connections.insert(flow, connection);
	/*
	 * A look-up marks the entry as used. Else the kernel takes it for older than all entries that
	 * have been looked up, and evicts it first: the client's own entry before its answer comes.
	 */
	if (!error)
		new_connections.lookup(flow);
	return error;
}

/*
 * Find the partner of an entry. NULL if it is missing, or if another connection has taken its key
 * since: then it does not lead back.
 */
static inline struct connection *partner_find(struct flow *partner, const struct flow *flow,
					      const struct connection *entry)
{
	struct connection *other;

	flow_reverse(partner, &entry->after, other_hook(flow->hook));
	other = connection_find(partner);
	return other && flow_is_reverse(flow, &other->after) ? other : NULL;
}

/*
 * Delete an entry, wherever it is. Another CPU may move it (connection_move): either the entry is
 * missing there in the end, or the copy is in `connections` already.
 */
static inline void entry_delete(struct flow *flow)
{
	struct port_filter *filter = port_filter_get(flow->hook, flow->protocol);

	if (!filter || filter->overflowed)
		new_connections.delete(flow);
	connections.delete(flow);
}

/*
 * Remove the pair around the wire that `flow` belongs to: no load counts it. `connection`, its
 * entry, must not be used afterwards.
 */
static inline void masquerade_pair_remove(struct flow *flow, struct connection *connection)
{
	struct flow partner;

	if (partner_find(&partner, flow, connection))
		entry_delete(&partner);
	if (connection->held)
		half_open_release();
	entry_delete(flow);
}

/*
 * Remove the pair that `flow` belongs to, likewise. The entry of the client's packets goes last:
 * while it is there, none of them opens the connection anew, of which this would then delete an
 * entry.
 */
static inline void connection_remove(struct flow *flow, struct connection *connection)
{
	bool reply = connection->reply;
	struct connection *other;
	struct flow partner;

	/* First and by numbers, so that the verifier does not follow this on many paths. */
	pair_count_release(half_open_get(), connection->held);
	pair_count_release(untranslated_get(), connection->outside >> 1);

	other = partner_find(&partner, flow, connection);
	load_leave(connection);
	if (reply)
		entry_delete(flow);
	if (other) {
		load_leave(other);
		entry_delete(&partner);
	}
	if (!reply)
		entry_delete(flow);
}

/* Remove the masquerade of what leaves as `after`: the next such flow is another connection. */
static inline void masquerade_remove(const struct flow *after)
{
	struct flow routed = *after;
	struct connection *masquerade;

	routed.hook = HOOK_EGRESS;
	masquerade = connection_find(&routed);
	if (masquerade && !masquerade->reply)
		masquerade_pair_remove(&routed, masquerade);
}
