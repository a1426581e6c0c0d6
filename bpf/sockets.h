/*
 * Sockets of the node and of its pods: translated when they connect or send, so that no packet is
 * ever changed. A call that cannot be given exactly what tc would give its packets is left alone,
 * and tc translates them. Of a pod those are: calls of a namespace that is not known yet; what is to be
 * masqueraded, the way of a pod to itself included; what is to be refused or lost; and
 * connected UDP, which nobody could lead to another backend later.
 */

#define ECONNREFUSED 111
#define EHOSTUNREACH 113

#define SOCKET_CONNECTED 1 /* state of a connected UDP socket: TCP_ESTABLISHED */

/* What a connected UDP socket asked for. */
struct udp_socket {
	struct address frontend;
	__be16 frontend_port;
	__u16 zero;
};

/*
 * Those of the node, by their cookie: they are never asked again, so the agent closes them when their
 * backend ceases to serve. It also removes the rows of those that are closed already. Nothing is
 * evicted: who comes when there is no room stays unknown.
 */
MAP("hash", __u64, struct udp_socket, udp_sockets, 262144, BPF_F_NO_PREALLOC);

/* bcc declares the helper's result as 32 bits. */
static __u64 (*socket_cookie)(void *context) = (void *)BPF_FUNC_get_socket_cookie;

static inline void socket_address(struct bpf_sock_addr *context, bool v4, struct address *address)
{
	if (v4) {
		address_from_v4(address, context->user_ip4);
	} else {
		address->words[0] = context->user_ip6[0];
		address->words[1] = context->user_ip6[1];
		address->words[2] = context->user_ip6[2];
		address->words[3] = context->user_ip6[3];
	}
}

static inline void socket_set_address(struct bpf_sock_addr *context, bool v4,
				      const struct address *address, __be16 port)
{
	if (v4) {
		context->user_ip4 = address->words[3];
	} else {
		context->user_ip6[0] = address->words[0];
		context->user_ip6[1] = address->words[1];
		context->user_ip6[2] = address->words[2];
		context->user_ip6[3] = address->words[3];
	}
	context->user_port = port;
}

/*
 * No address at all means loopback to connect(2): of IPv4 it is made that, of IPv6 (true) it is never a
 * frontend. NodePorts stand under these addresses, so they must not be asked for.
 */
static inline bool asked_of_nobody(struct address *address)
{
	if (address->words[3])
		return false;
	if (address_is_v4(address))
		address->words[3] = bpf_htonl(0x7f000001);
	return address_is_zero(address);
}

/* What the socket is bound to; false while the kernel is to choose. */
static inline bool socket_bound(struct bpf_sock_addr *context, bool v4, bool connect,
				struct address *address)
{
	if (v4) {
		__be32 bound = connect ? context->sk->src_ip4 : context->msg_src_ip4;

		address_from_v4(address, bound);
		return bound;
	}
	if (connect) {
		address->words[0] = context->sk->src_ip6[0];
		address->words[1] = context->sk->src_ip6[1];
		address->words[2] = context->sk->src_ip6[2];
		address->words[3] = context->sk->src_ip6[3];
	} else {
		address->words[0] = context->msg_src_ip6[0];
		address->words[1] = context->msg_src_ip6[1];
		address->words[2] = context->msg_src_ip6[2];
		address->words[3] = context->msg_src_ip6[3];
	}
	return !address_is_zero(address);
}

/*
 * Leave a call of a pod to tc. A UDP socket stays there: its flow is known to tc from now on, and one
 * backend serves it. `cookie`: of the namespace that its packet is to tell of, or 0.
 */
static inline int socket_leave(struct bpf_sock_addr *context, bool connect, __u64 cookie)
{
	struct socket_translations *known;

	if (connect && !cookie)
		return 1;
	known = socket_translations.sk_storage_get(context->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (known) {
		known->by_packets = 1;
		known->netns_cookie = cookie;
	}
	return 1;
}

/* Whether this kind of call of a pod is tc's, whatever is known of the pod. */
static inline bool pod_call_is_odd(struct bpf_sock_addr *context, const struct frontend_key *asked,
				   bool connect)
{
	const __be32 *words = asked->address.words;

	/* Loopback is the pod's own. */
	if (!(words[0] | words[1] | words[2]) ||
	    !(family_offset(&asked->address) |
	      (words[3] & bpf_htonl(0xff000000)) ^ bpf_htonl(0x7f000000)))
		return true;
	if (asked->protocol != PROTO_TCP && (connect || asked->protocol != PROTO_UDP))
		return true;
	/* Two frontends may lead a port to one backend: only tc can give one of them another port. */
	if (connect && context->sk->src_port)
		return true;
	/* These may be routed in other ways than what the namespace is known by. */
	return context->sk->bound_dev_if || context->sk->mark;
}

static inline bool udp_is_connected(struct bpf_sock_addr *context)
{
	return context->sk->state == SOCKET_CONNECTED;
}

/* A call while nothing is certain about its namespace: tc's, if to a frontend. */
static inline int pod_unknown(struct bpf_sock_addr *context, bool connect, __u64 cookie,
			      const struct netns *row, const struct frontend_key *asked, bool tells)
{
	struct frontend_key key = *asked;

	if (!frontend_find(&key))
		return 1;
	if (!row) {
		struct netns fresh = {};

		namespaces.update(&cookie, &fresh);
	}
	return socket_leave(context, connect, tells ? cookie : 0);
}

/* connect and sendmsg: send to a backend what was meant for a frontend. */
static inline int socket_forward(struct bpf_sock_addr *context, bool v4, bool connect)
{
	struct settings *settings = settings_get();
	__u64 cookie = bpf_get_netns_cookie(context);
	struct socket_translations *known = NULL;
	struct frontend_key asked = {}, key;
	struct choice choice = {};
	struct client client = {};
	struct home *home = NULL;
	bool bound;
	int verdict;

	if (!settings || settings->socket_lb == SOCKETS_OFF)
		return 1;
	asked.protocol = context->protocol;
	asked.port = (__be16)context->user_port;
	socket_address(context, v4, &asked.address);
	if (asked_of_nobody(&asked.address))
		return 1;

	if (!connect) {
		struct socket_translation *row = NULL;

		known = socket_translations.sk_storage_get(context->sk, 0, 0);
		if (known)
			row = socket_backend(known, &asked);
		if (row) {
			if (udp_is_connected(context) && cookie != settings->netns_cookie)
				return 1;
			socket_set_address(context, v4, &row->backend.by.address,
					   row->backend.by.port);
			return 1;
		}
	}
	key = asked;
	bound = socket_bound(context, v4, connect, &client.address);
	if (cookie != settings->netns_cookie) {
		struct netns *row;
		__u64 now;
		__u32 state;

		if (settings->socket_lb != SOCKETS_ALL ||
		    pod_call_is_odd(context, &asked, connect) ||
		    (!connect && udp_is_connected(context)))
			return 1;
		if (known && (known->by_packets || known->next >= SOCKET_TRANSLATIONS))
			return 1;
		row = namespaces.lookup(&cookie);
		/* What a socket is bound to need not be what others of its namespace come from. */
		if (!row)
			return pod_unknown(context, connect, cookie, row, &asked, !bound);
		home = namespace_home(row, &asked.address);
		state = home->state;
		now = bpf_ktime_get_coarse_ns();
		if (state == HOME_UNSURE)
			return 1;
		if (state == HOME_UNKNOWN || (state == HOME_TRIED && !trial_is_over(home, now)))
			return pod_unknown(context, connect, cookie, row, &asked,
					   state == HOME_UNKNOWN && !bound);
		if ((__s64)(now - row->checked) >= NS_PER_SECOND) {
			row->checked = now;
			namespace_check(context, settings, row);
		}
		if (row->left_alone || (bound && !address_equal(&client.address, &home->address)) ||
		    address_equal(&asked.address, &home->address))
			return 1;
		client.address = home->address;
		client.class = home->class;
	} else {
		loopback_normalize(&key.address);
		client.class = CLIENT_NODE;
		if (!bound)
			client.address = *(&settings->node_v4 + family_offset(&asked.address));
	}
	verdict = choose_backend(&key, &client, &choice);
	if (verdict == VERDICT_NONE)
		return 1;
	if (verdict != VERDICT_DNAT) {
		if (home)
			return 1;
		count_refusal(verdict);
		bpf_set_retval(verdict == VERDICT_REJECT ? -ECONNREFUSED : -EHOSTUNREACH);
		return 0;
	}
	if (home && choice.masquerade)
		return socket_leave(context, connect, 0);
	known = socket_translations.sk_storage_get(context->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (home) {
		if (!known)
			return 1;
		if (address_equal(&client.address, &choice.backend.address)) {
			known->by_packets = 1;
			known->asked = asked;
			known->itself = choice.backend;
			return 1;
		}
		if (home->state != HOME_PROVEN) {
			home->tried = bpf_ktime_get_coarse_ns();
			home->trials++;
			home->state = HOME_TRIED;
			home->due = 1;
		}
		if (home->due) {
			home->due = 0;
			known->netns_cookie = cookie;
		}
	}
	if (known)
		socket_remember(known, &asked, &choice);
	choice_made(&choice, &client);
	if (connect && asked.protocol == PROTO_UDP) {
		struct udp_socket row = {.frontend = asked.address, .frontend_port = asked.port};
		__u64 socket = socket_cookie(context);

		udp_sockets.update(&socket, &row);
	}
	socket_set_address(context, v4, &choice.backend.address, choice.backend.port);
	return 1;
}

/* recvmsg and getpeername: show a frontend where the backend's address would stand. */
static inline int socket_reverse(struct bpf_sock_addr *context, bool v4)
{
	struct socket_translations *known;
	struct address peer;
	__be16 port;

	known = socket_translations.sk_storage_get(context->sk, 0, 0);
	if (!known)
		return 1;
	port = (__be16)context->user_port;
	socket_address(context, v4, &peer);
#pragma clang loop unroll(disable)
	for (int i = 0; i < SOCKET_TRANSLATIONS; i++) {
		struct socket_translation *row = &known->rows[i];

		if (row->backend.by.port == port && port &&
		    address_equal(&row->backend.by.address, &peer)) {
			socket_set_address(context, v4, &row->frontend, row->frontend_port);
			return 1;
		}
	}
	return 1;
}
