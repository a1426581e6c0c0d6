/*
 * The node's own sockets: translated when they connect or send, so that no packet is ever changed.
 * What a socket asked for is kept in the storage of that socket, which cannot fill up and dies with
 * it, and is what it hears of its peer.
 */

#define SOCKET_TRANSLATIONS 8

#define ECONNREFUSED 111
#define EHOSTUNREACH 113

struct socket_translation {
	struct address frontend;
	struct address backend;
	__be16 frontend_port;
	__be16 backend_port;
};

/* A TCP or connected socket has one; a UDP socket may send to several frontends in turn. */
struct socket_translations {
	struct socket_translation rows[SOCKET_TRANSLATIONS];
	__u32 next;
};

SOCKET_STORAGE(struct socket_translations, socket_translations);

/*
 * Connected UDP sockets, by their cookie: of which service. They are never asked again, so that the
 * agent closes those whose backend ceases to serve.
 */
MAP("lru_hash", __u64, __u32, udp_sockets, 65536, 0);

/* bcc declares the helper's result as 32 bits. */
static __u64 (*socket_cookie)(void *context) = (void *)BPF_FUNC_get_socket_cookie;

static inline bool socket_is_ours(struct bpf_sock_addr *context)
{
	struct settings *settings = settings_get();

	return settings && bpf_get_netns_cookie(context) == settings->netns_cookie;
}

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

/* The backend this socket already sends to under `key`, while it still is one. */
static inline bool socket_backend(struct socket_translations *known, const struct frontend_key *key,
				  struct backend *backend)
{
#pragma unroll
	for (int i = 0; i < SOCKET_TRANSLATIONS; i++) {
		struct socket_translation *row = &known->rows[i];

		if (row->frontend_port == key->port &&
		    address_equal(&row->frontend, &key->address) &&
		    endpoint_known(&row->backend, row->backend_port, key->protocol)) {
			backend->address = row->backend;
			backend->port = row->backend_port;
			return true;
		}
	}
	return false;
}

static inline void socket_remember(struct socket_translations *known,
				   const struct frontend_key *key, const struct backend *backend)
{
	struct socket_translation *row = &known->rows[known->next % SOCKET_TRANSLATIONS];

	row->frontend = key->address;
	row->frontend_port = key->port;
	row->backend = backend->address;
	row->backend_port = backend->port;
	known->next++;
}

/* What the socket is bound to or, while it has no address, what this node is known by. */
static inline void socket_client(struct bpf_sock_addr *context, bool v4, bool connect,
				 struct client *client)
{
	struct settings *settings = settings_get();
	struct address *address = &client->address;

	client->class = CLIENT_NODE;
	if (v4) {
		__be32 bound = connect ? context->sk->src_ip4 : context->msg_src_ip4;

		address_from_v4(address, bound);
		if (!bound && settings)
			*address = settings->node_v4;
		return;
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
	if (address_is_zero(address) && settings)
		*address = settings->node_v6;
}

/* connect and sendmsg: send to a backend what was meant for a frontend. */
static inline int socket_forward(struct bpf_sock_addr *context, bool v4, bool connect)
{
	struct socket_translations *known;
	struct frontend_key asked = {}, key;
	struct choice choice = {};
	struct client client;
	int verdict;

	if (!socket_is_ours(context))
		return 1;
	asked.protocol = context->protocol;
	asked.port = (__be16)context->user_port;
	socket_address(context, v4, &asked.address);

	if (!connect) {
		known = socket_translations.sk_storage_get(context->sk, 0, 0);
		if (known && socket_backend(known, &asked, &choice.backend)) {
			socket_set_address(context, v4, &choice.backend.address,
					   choice.backend.port);
			return 1;
		}
	}
	key = asked;
	loopback_normalize(&key.address);
	socket_client(context, v4, connect, &client);
	verdict = choose_backend(&key, &client, &choice);
	if (verdict == VERDICT_NONE)
		return 1;
	count_refusal(verdict);
	if (verdict != VERDICT_DNAT) {
		bpf_set_retval(verdict == VERDICT_REJECT ? -ECONNREFUSED : -EHOSTUNREACH);
		return 0;
	}
	known = socket_translations.sk_storage_get(context->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (known)
		socket_remember(known, &asked, &choice.backend);
	choice_made(&choice, &client);
	if (connect && asked.protocol == PROTO_UDP) {
		__u64 cookie = socket_cookie(context);

		udp_sockets.update(&cookie, &choice.service);
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
#pragma unroll
	for (int i = 0; i < SOCKET_TRANSLATIONS; i++) {
		struct socket_translation *row = &known->rows[i];

		if (row->backend_port == port && port && address_equal(&row->backend, &peer)) {
			socket_set_address(context, v4, &row->frontend, row->frontend_port);
			return 1;
		}
	}
	return 1;
}
