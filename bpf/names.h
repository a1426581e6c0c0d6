/*
 * Rows no program reads: they let people and a restarted agent understand the others.
 * `services` names the service ids; `layout` holds the layout of every map as JSON.
 */

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
