/* Clients, and their classes: a frontend has a policy for each. */
#pragma once

#include "lib/address.h"
#include "maps/frontends.h"
#include "maps/interfaces.h"
#include "maps/node_addresses.h"
#include "maps/settings.h"

struct client {
	struct address address;
	__u32 class;
	__be16 port; /* 0: the kernel has not chosen it yet */
	__u16 zero;
};

static inline __u32 client_class(const struct settings *settings, __u32 ifindex,
				 struct address *source)
{
	if (settings->detect_interfaces) {
		struct interface *entry = interfaces.lookup(&ifindex);

		if (entry && entry->pods)
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
