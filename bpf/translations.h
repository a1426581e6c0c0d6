/*
 * What a socket asked for and was given instead, in the storage of that socket: it cannot fill up,
 * dies with the socket, and is what the socket hears of its peer.
 */

#define SOCKET_TRANSLATIONS 8

/*
 * Who serves a UDP service, eligible or not: 1, or 0 for who has just ceased to. The agent writes it
 * after the rows of the service.
 */
struct served {
	__u32 service;
	struct endpoint_key by;
};

MAP("hash", struct served, __u32, udp_serving, MAX_BACKEND_SLOTS, BPF_F_NO_PREALLOC);

/* So long a choice is believed that may not stand there yet. */
#define CHOICE_FRESH_NS (2 * NS_PER_SECOND)

struct socket_translation {
	struct address frontend;
	__be16 frontend_port;
	__u16 zero;
	struct served backend;
	__u64 chosen; /* ns, CLOCK_MONOTONIC */
};

/* A TCP or connected socket has one; a UDP socket may send to several frontends in turn. */
struct socket_translations {
	struct socket_translation rows[SOCKET_TRANSLATIONS];
	__u32 next;
	__u32 by_packets;   /* tc knows flows of this socket, so what is new is tc's as well */
	__u64 netns_cookie; /* whose namespace its next packet tells of; 0: it need not */
	struct frontend_key asked; /* what the choice below was made for */
	struct backend itself; /* the client is its own backend: tc's to do; port 0: it is not */
};

SOCKET_STORAGE(struct socket_translations, socket_translations);

/* Whether who was chosen still serves. One that is not eligible any more keeps those it has. */
static inline bool translation_stands(struct socket_translation *row)
{
	__u32 *serves = udp_serving.lookup(&row->backend);

	if (serves)
		return *serves;
	return (__s64)(bpf_ktime_get_coarse_ns() - row->chosen) < CHOICE_FRESH_NS &&
	       endpoints.lookup(&row->backend.by);
}

/* The row of the backend this socket already sends to under `key`, while it still is one. */
static inline struct socket_translation *socket_backend(struct socket_translations *known,
							const struct frontend_key *key)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < SOCKET_TRANSLATIONS; i++) {
		struct socket_translation *row = &known->rows[i];

		if (row->frontend_port == key->port &&
		    address_equal(&row->frontend, &key->address) && translation_stands(row))
			return row;
	}
	return NULL;
}

static inline void socket_remember(struct socket_translations *known,
				   const struct frontend_key *key, const struct choice *choice)
{
	struct socket_translation *row = &known->rows[known->next % SOCKET_TRANSLATIONS];

	row->frontend = key->address;
	row->frontend_port = key->port;
	row->backend.service = choice->service;
	row->backend.by.address = choice->backend.address;
	row->backend.by.port = choice->backend.port;
	row->backend.by.protocol = key->protocol;
	row->chosen = bpf_ktime_get_coarse_ns();
	known->next++;
}
