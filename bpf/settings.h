/* What the agent tells the programs about this node: one row, changed without recompiling. */

#define NS_PER_SECOND 1000000000LL

#define SOCKETS_OFF 0
#define SOCKETS_HOST 1
#define SOCKETS_ALL 2

struct settings {
	__u64 netns_cookie; /* the network namespace of the node; sockets of others are left alone */
	struct address pod_network_v4;
	struct address pod_mask_v4;
	struct address pod_network_v6;
	struct address pod_mask_v6;
	__u16 masquerade_first; /* host order */
	__u16 masquerade_ports; /* how many */
	__u16 detect_pods_v4;	/* 0: no pod range of this family is known */
	__u16 detect_pods_v6;
	__u32 tcp_established_seconds;
	__u32 tcp_half_closed_seconds;
	__u32 tcp_closed_seconds;
	__u32 udp_seconds;
	__u32 sctp_seconds;
	__u32 half_open_seconds; /* what is not established */
	__u32 detect_interfaces; /* pods come by marked interfaces, whatever their addresses */
	__u32 settling;		 /* connections of an older build are still being carried over */
	__u32 socket_lb;	 /* of SOCKETS_* */
	__u32 fast_path;	 /* translated packets may skip the stack */
	__u16 mesh_ports[4];	/* host order; 0: none. Who listens there sees to its pod's calls */
	struct address node_v4; /* what this node's own sockets come from, unless bound */
	struct address node_v6;
	char reserved_ports[256]; /* what of ip_local_reserved_ports is ours to give back */
};

MAP("array", __u32, struct settings, settings, 1, 0);

static inline struct settings *settings_get(void)
{
	__u32 only = 0;

	return settings.lookup(&only);
}
