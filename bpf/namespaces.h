/*
 * Network namespaces of pods: what tc would know of a packet, for calls that have sent none yet.
 *
 * tc decides by the interface that a packet comes in by and by its source address. A socket that
 * connects has neither. So the first calls of a namespace to frontends are left to tc, and their
 * packets tell: on its way through a veth a packet still knows its socket, and that knows the
 * namespace it belongs to. Then one call is translated, and only when its packet came in as was
 * expected are others. From then on one call a second is looked at in the same way. A namespace
 * whose packets come by several ways is left to tc, as is one whose packets are never met.
 */

/* 0 for IPv4, 1 for IPv6; without a branch, which the verifier would follow both ways to the end. */
static inline __u32 family_offset(const struct address *address)
{
	__u32 other = address->words[0] | address->words[1] |
		      (address->words[2] ^ bpf_htonl(0xffff));

	return (other | -other) >> 31;
}

#define HOME_UNKNOWN 0
#define HOME_LEARNED 1 /* from a packet to a frontend */
#define HOME_TRIED 2   /* one call was translated; nothing has been seen of it so far */
#define HOME_PROVEN 3
#define HOME_UNSURE 4 /* packets come from several addresses, or by several interfaces */

/* How long to wait for what becomes of the first trial; for later ones twice as long each. */
#define TRIAL_NS (60 * NS_PER_SECOND)

/* Where packets of one family come from, and so who sends them. The state is written last. */
struct home {
	struct address address;
	__u64 tried; /* ns, CLOCK_MONOTONIC */
	__u32 ifindex;
	__u32 class; /* of CLIENT_*, as of the last check */
	__u32 state; /* of HOME_* */
	__u32 trials;
	__u32 due; /* the packet of the next call is to be looked at */
	__u32 zero;
};

struct netns {
	struct home v4;
	struct home v6;
	__u64 checked; /* ns, CLOCK_MONOTONIC: when the next was found out */
	__u32 left_alone;
	__u32 found; /* so far, while it is being found out */
};

MAP("lru_hash", __u64, struct netns, namespaces, MAX_INTERFACES, 0);

/* See who comes from there; true if it wants to be left alone. */
static inline bool home_check(const struct settings *settings, struct home *home)
{
	if (home->state == HOME_UNKNOWN)
		return false;
	home->due = 1;
	home->class = client_class(settings, home->ifindex, &home->address);
	return socket_optouts.lookup(&home->address);
}

static inline bool someone_listens(struct bpf_sock_addr *context, struct bpf_sock_tuple *tuple,
				   __u32 size)
{
	struct bpf_sock *socket = bpf_sk_lookup_tcp(context, tuple, size, BPF_F_CURRENT_NETNS, 0);

	if (!socket)
		return false;
	bpf_sk_release(socket);
	return true;
}

/*
 * Find out who its clients are, and whether they want to be left alone: by an address that opted
 * out, or by a proxy within the pod that takes its calls, a mesh's, which wants to see the frontend.
 * What is found is noted at once: the verifier would follow what a variable knows through all that
 * comes after.
 */
static inline void namespace_check(struct bpf_sock_addr *context, const struct settings *settings,
				   struct netns *row)
{
	row->found = home_check(settings, &row->v4);
	if (home_check(settings, &row->v6))
		row->found = 1;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 4; i++) {
		__be16 port = bpf_htons(settings->mesh_ports[i]);
		struct bpf_sock_tuple tuple = {};

		if (!port)
			continue;
		tuple.ipv4.daddr = bpf_htonl(0x7f000001);
		tuple.ipv4.dport = port;
		if (someone_listens(context, &tuple, sizeof(tuple.ipv4)))
			row->found = 1;
		__builtin_memset(&tuple, 0, sizeof(tuple));
		tuple.ipv6.daddr[3] = bpf_htonl(1);
		tuple.ipv6.dport = port;
		if (someone_listens(context, &tuple, sizeof(tuple.ipv6)))
			row->found = 1;
	}
	row->left_alone = row->found;
}

static inline struct home *namespace_home(struct netns *row, const struct address *to)
{
	return &row->v4 + family_offset(to);
}

static inline bool trial_is_over(const struct home *home, __u64 now)
{
	return (__s64)(now - home->tried) >= TRIAL_NS << (home->trials & 15);
}

static inline void home_hear(struct netns *row, struct home *home, const struct address *source,
			     __u32 ifindex, bool translated)
{
	if (home->state == HOME_UNKNOWN) {
		home->address = *source;
		home->ifindex = ifindex;
		row->checked = 0; /* this address may be one that opted out */
		asm volatile("" ::: "memory");
		home->state = HOME_LEARNED;
	} else if (home->ifindex != ifindex || !address_equal(&home->address, source)) {
		home->state = HOME_UNSURE;
	} else if (home->state == HOME_TRIED && translated) {
		home->state = HOME_PROVEN;
	}
}

/*
 * A first packet, if from a pod's socket: take what it tells, and of a pod that is to reach itself
 * the choice that was made for it. `translated`: its socket was, and it goes to a backend.
 */
static inline void hear_socket(struct __sk_buff *skb, struct packet *packet, bool translated)
{
	struct bpf_sock *socket = skb->sk;
	struct socket_translations *known;
	struct netns *row;
	__u64 cookie;

	if (!socket)
		return;
	known = socket_translations.sk_storage_get(socket, 0, 0);
	if (!known)
		return;
	if (!translated && known->itself.port &&
	    known->asked.port == packet->flow.destination_port &&
	    address_equal(&known->asked.address, &packet->flow.destination)) {
		packet->choice.backend = known->itself;
		known->itself.port = 0;
	}
	cookie = known->netns_cookie;
	if (!cookie)
		return;
	known->netns_cookie = 0;
	row = namespaces.lookup(&cookie);
	if (row)
		home_hear(row, packet->v4 ? &row->v4 : &row->v6, &packet->flow.source, skb->ifindex,
			  translated);
}
