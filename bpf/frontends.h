/*
 * Frontends: where clients send to. A row says which slots of which generation of a service's
 * backends serve each class of client; it changes in one step, so a Service is never seen half
 * written. NodePorts stand under the wildcard address of their family. Port 0 of protocol 0 stands for
 * all of an address that the other rows leave.
 */

struct policy {
	__u32 first; /* slot */
	__u32 size;  /* 0: nobody is home */
	__u8 masquerade;
	__u8 reject; /* with size 0: tell the client, else stay silent */
	__u8 zero[2];
};

struct frontend_key {
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 zero;
};

struct frontend {
	__u32 service;
	__u32 generation;
	struct policy pod;
	struct policy node;
	struct policy other;
	__u32 affinity_seconds; /* 0: every connection makes a choice of its own */
	__u8 restricted;	/* clients must stand in source_ranges */
	__u8 zero[3];
};

MAP("hash", struct frontend_key, struct frontend, frontends, MAX_FRONTENDS, BPF_F_NO_PREALLOC);

static inline void policy_for(struct policy *policy, const struct frontend *frontend, int client)
{
	if (client == CLIENT_POD)
		*policy = frontend->pod;
	else if (client == CLIENT_NODE)
		*policy = frontend->node;
	else
		*policy = frontend->other;
}

/* Turn `key` into the key of the row that serves it; NULL if it is nobody's frontend. */
static inline struct frontend *frontend_find(struct frontend_key *key)
{
	struct frontend *frontend = frontends.lookup(key);
	struct node_address *node;

	if (frontend)
		return frontend;
	node = node_addresses.lookup(&key->address);
	if (!node || !node->nodeports)
		return NULL;
	if (!address_is_v4(&key->address))
		key->address.words[2] = 0;
	key->address.words[0] = 0;
	key->address.words[1] = 0;
	key->address.words[3] = 0;
	return frontends.lookup(key);
}
