/* Settings of this node, written by the agent: one entry, which changes without recompiling. */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/map.h"

#define NS_PER_SECOND 1000000000LL
#define NS_PER_MS 1000000LL

/* Longer than the agent is away for another version of it. */
#define FAST_PATH_GUARD_SECONDS 60

/* Whose sockets are translated. */
enum socket_lb {
	SOCKET_LB_OFF,
	SOCKET_LB_HOST, /* sockets of the node */
	SOCKET_LB_ALL,	/* and sockets of its pods */
};

/*
 * This build takes over from an older one, whose connections have another layout and are copied.
 * That build has settings of its own. If its programs cannot be called, these serve at once.
 */
enum takeover {
	TAKEOVER_NONE,
	TAKEOVER_ATTACHING, /* its programs handle all packets: they are still at some interfaces */
	TAKEOVER_ATTACHED,  /* they handle those without an entry here: a few are not copied yet */
};

/* As an interval between ICMP errors: neither this nor the limit for all addresses applies. */
enum { ICMP_UNLIMITED = 0xffffffff };

struct settings {
	__u64 netns_cookie; /* of the node's network namespace; others are pods' */
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
	__u32 half_open_seconds; /* connections that are not established */
	__u32 detect_interfaces; /* clients are pods if they come by an interface with `pods` */
	__u32 takeover;		 /* of enum takeover */
	__u32 socket_lb;	 /* of enum socket_lb */
	__u32 fast_path;	 /* connections between pods may skip the stack as a whole */
	__u32 established;	 /* or in their middle, once netfilter has them established */
	__u32 fast_outside; /* connections from outside to pods may skip the stack as a whole */
	__u16 mesh_ports
		[4]; /* host order; 0: none. A listener there handles the calls of its pod */
	/* ms from one ICMP error to the next to one address, as icmp_ratelimit */
	__u32 icmp_interval_v4;
	__u32 icmp_interval_v6;
	__u32 icmp_per_second; /* to all addresses, as icmp_msgs_per_sec */
	__u32 icmp_burst;
	__u32 port_secret;	/* so that masquerade ports cannot be told beforehand */
	__u32 fast_path_second; /* when the agent last wrote that the fast path is allowed */
	struct address node_v4; /* source of the node's own sockets, unless they are bound */
	struct address node_v6;
	char reserved_ports[256]; /* what the agent added to ip_local_reserved_ports */
};

MAP("array", __u32, struct settings, settings, 1, 0);

static inline struct settings *settings_get(void)
{
	__u32 only = 0;

	return settings.lookup(&only);
}

/*
 * True if an agent still watches for rules that the fast path must not bypass. If no agent does,
 * new connections take the stack, and fast connections stay fast. Only first packets ask.
 */
static inline bool fast_path_guarded(const struct settings *settings)
{
	__u32 now = bpf_ktime_get_coarse_ns() / NS_PER_SECOND;

	return (__s32)(now - settings->fast_path_second) <= FAST_PATH_GUARD_SECONDS;
}

/* True for a source port that may have been chosen here, for a masquerade. */
static inline bool is_masquerade_port(const struct settings *settings, __be16 port)
{
	return (__u16)(bpf_ntohs(port) - settings->masquerade_first) < settings->masquerade_ports;
}

static inline bool in_pod_range(const struct settings *settings, const struct address *address,
				bool v4)
{
	if (v4)
		return settings->detect_pods_v4 &&
		       address_within(address, &settings->pod_network_v4, &settings->pod_mask_v4);
	return settings->detect_pods_v6 &&
	       address_within(address, &settings->pod_network_v6, &settings->pod_mask_v6);
}

/* True if both ends of a flow are in the pod range. */
static inline bool ends_in_pod_range(const struct settings *settings, const struct flow *flow,
				     bool v4)
{
	return in_pod_range(settings, &flow->destination, v4) &&
	       in_pod_range(settings, &flow->source, v4);
}
