/* This node: its addresses, the source addresses of its interfaces, and who counts as its pod. */

struct node_address {
	__u8 nodeports; /* NodePorts are accepted here; NODEPORTS_ALL_OVER: in all of 127/8 */
	__u8 zero[3];
};

MAP("hash", struct address, struct node_address, node_addresses, MAX_NODE_ADDRESSES,
    BPF_F_NO_PREALLOC);

#define NODEPORTS_ALL_OVER 2

/* Every address of 127/8 is this node's: one row may stand for all of them. */
static inline void loopback_normalize(struct address *address)
{
	struct address only = {};
	struct node_address *row;

	if (!address_is_v4_loopback(address))
		return;
	address_from_v4(&only, bpf_htonl(0x7f000001));
	row = node_addresses.lookup(&only);
	if (row && row->nodeports == NODEPORTS_ALL_OVER)
		*address = only;
}

/* An interface we are attached to. */
struct interface {
	struct address v4; /* what to masquerade to when a packet leaves by it; all zero: nothing */
	struct address v6;
	__u8 pods; /* who comes by it is a pod of this node */
	__u8 peer; /* a veth whose other end is in another namespace, and is no port of a bridge */
	__u8 shortcut; /* the fast path may take packets from it and send by it */
	__u8 zero;
};

MAP("hash", __u32, struct interface, interfaces, MAX_INTERFACES, BPF_F_NO_PREALLOC);

#define CLIENT_POD 0
#define CLIENT_NODE 1
#define CLIENT_OTHER 2

static inline __u32 client_class(const struct settings *settings, __u32 ifindex,
				 struct address *source)
{
	if (settings->detect_interfaces) {
		struct interface *row = interfaces.lookup(&ifindex);

		if (row && row->pods)
			return CLIENT_POD;
	}
	if (settings->detect_pods_v4 &&
	    address_within(source, &settings->pod_network_v4, &settings->pod_mask_v4))
		return CLIENT_POD;
	if (settings->detect_pods_v6 &&
	    address_within(source, &settings->pod_network_v6, &settings->pod_mask_v6))
		return CLIENT_POD;
	return node_addresses.lookup(source) ? CLIENT_NODE : CLIENT_OTHER;
}

/* The address to leave with; false when the interface has none of the family. */
static inline bool masquerade_address(__u32 ifindex, bool v4, struct address *address)
{
	struct interface *row = interfaces.lookup(&ifindex);

	if (!row)
		return false;
	*address = v4 ? row->v4 : row->v6;
	return !address_is_zero(address);
}

/* Pods of this node, by their addresses, whose sockets are to be left alone: they asked for it. */
MAP("hash", struct address, __u32, socket_optouts, MAX_INTERFACES, BPF_F_NO_PREALLOC);
