/*
 * Metadata for people and for a restarted agent; no program reads it. `services` has the names
 * behind service ids, `layout` the layout of every map as JSON.
 */
#pragma once

#include "lib/map.h"

struct service_name {
	char namespace[64];
	char name[64];
	char port_name[64];
	__u16 number; /* spec.ports[].port, host order */
	__u8 protocol;
	__u8 family;
};

MAP("hash", __u32, struct service_name, services, MAX_SERVICES, BPF_F_NO_PREALLOC);

struct layout {
	char json[LAYOUT_BYTES];
};

MAP("array", __u32, struct layout, layout, 1, 0);
