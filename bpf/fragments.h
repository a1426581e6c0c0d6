/*
 * Fragments after the first carry no ports. The first one of a datagram leaves them here, by what all
 * of its fragments have in common, for the others that pass the same hook. One that overtook its first
 * goes round, through the queue of its interface, until the first has passed or too long has gone by.
 */

struct fragment_key {
	struct address source;
	struct address destination;
	__u32 id;
	__u8 protocol; /* IPv4 counts ids for each; 0 with IPv6, where headers may be in between */
	__u8 hook;
	__u16 zero;
};

struct fragment_start {
	struct ports ports;
	__u8 protocol;
	__u8 state; /* of FRAGMENT_TRANSLATED, _PASSED, _AWAITED */
	__u8 zero[2];
	__u64 since; /* awaited, ns */
};

#define FRAGMENT_TRANSLATED 1
#define FRAGMENT_PASSED 2 /* as it was */
#define FRAGMENT_AWAITED 3

#define MAX_FRAGMENTS 8192 /* datagrams on their way */

MAP("lru_hash", struct fragment_key, struct fragment_start, fragments, MAX_FRAGMENTS, 0);

static inline void fragment_key_of(struct fragment_key *key, const struct packet *packet)
{
	key->source = packet->flow.source;
	key->destination = packet->flow.destination;
	key->id = packet->fragment_id;
	key->protocol = packet->fragment_protocol;
	key->hook = packet->flow.hook;
	key->zero = 0;
}

static inline void fragment_note(const struct packet *packet, __u8 state)
{
	struct fragment_start start = {};
	struct fragment_key key;

	start.ports.source = packet->flow.source_port;
	start.ports.destination = packet->flow.destination_port;
	start.protocol = packet->flow.protocol;
	start.state = state;
	fragment_key_of(&key, packet);
	fragments.update(&key, &start);
}

/* A first fragment that is not translated: nobody need wait for it. */
static inline void fragment_passed(const struct packet *packet)
{
	if (packet->fragment == FRAGMENT_FIRST && packet->flow.hook == HOOK_INGRESS)
		fragment_note(packet, FRAGMENT_PASSED);
}

/* Give a later fragment the protocol and ports of its first; say what became of that, 0 if unknown. */
static inline __u8 fragment_recall(struct packet *packet)
{
	struct fragment_key key;
	struct fragment_start *start;

	fragment_key_of(&key, packet);
	start = fragments.lookup(&key);
	if (!start)
		return 0;
	if (start->state != FRAGMENT_TRANSLATED)
		return start->state;
	packet->flow.protocol = start->protocol;
	packet->flow.source_port = start->ports.source;
	packet->flow.destination_port = start->ports.destination;
	return FRAGMENT_TRANSLATED;
}

/*
 * How often fragments may go round on a CPU. Those whose first never comes, sent by somebody who
 * means harm, may cost a share of the processor and no more.
 */
#define FRAGMENT_ROUNDS 65536	   /* some 20 ms */
#define FRAGMENT_WINDOW_SHIFT 27   /* in 2^27 ns, 0.13 s */
#define FRAGMENT_PATIENCE 10000000 /* ns */

struct fragment_budget {
	__u64 window;
	__u64 rounds;
};

MAP("percpu_array", __u32, struct fragment_budget, fragment_budgets, 1, 0);

static inline bool fragment_budget_take(__u64 now)
{
	__u32 only = 0;
	struct fragment_budget *budget = fragment_budgets.lookup(&only);

	if (!budget)
		return false;
	if (budget->window != now >> FRAGMENT_WINDOW_SHIFT) {
		budget->window = now >> FRAGMENT_WINDOW_SHIFT;
		budget->rounds = 0;
	}
	return budget->rounds++ < FRAGMENT_ROUNDS;
}

/* Whether a fragment whose first has not been seen is to go round. */
static inline bool fragment_may_wait(const struct packet *packet)
{
	__u64 now = bpf_ktime_get_ns();
	struct fragment_start *start, awaited = {};
	struct fragment_key key;

	fragment_key_of(&key, packet);
	start = fragments.lookup(&key);
	if (!start) {
		awaited.state = FRAGMENT_AWAITED;
		awaited.since = now;
		/* The first may come by another CPU at this moment: what it notes must stay. */
		fragments.insert(&key, &awaited);
	} else if (now - start->since > FRAGMENT_PATIENCE) {
		return false;
	}
	return fragment_budget_take(now);
}
