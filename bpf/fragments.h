/*
 * Fragments after the first carry no ports. The first one of a datagram leaves them here, by what all
 * of its fragments have in common, for the others that pass the same hook.
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
	__u8 zero[3];
};

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

static inline void fragment_note(const struct packet *packet)
{
	struct fragment_start start = {};
	struct fragment_key key;

	start.ports.source = packet->flow.source_port;
	start.ports.destination = packet->flow.destination_port;
	start.protocol = packet->flow.protocol;
	fragment_key_of(&key, packet);
	fragments.update(&key, &start);
}

/* Give a later fragment the protocol and ports of its first; false when that has not passed here. */
static inline bool fragment_recall(struct packet *packet)
{
	struct fragment_key key;
	struct fragment_start *start;

	fragment_key_of(&key, packet);
	start = fragments.lookup(&key);
	if (!start)
		return false;
	packet->flow.protocol = start->protocol;
	packet->flow.source_port = start->ports.source;
	packet->flow.destination_port = start->ports.destination;
	return true;
}
