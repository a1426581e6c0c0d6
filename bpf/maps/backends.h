/*
 * Backends of each service, in numbered slots. The slots of one generation are written once and
 * never changed, so a frontend that names a generation names a complete set.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

struct backend_key {
	__u32 service;
	__u32 generation;
	__u32 slot;
};

struct backend {
	struct address address;
	__be16 port;
	__u8 hairpin; /* masquerade when the backend is its own client */
	__u8 zero;
	__u32 counters; /* index into backend_counters */
};

MAP("hash", struct backend_key, struct backend, backends, MAX_BACKEND_SLOTS, BPF_F_NO_PREALLOC);

/* What is recorded about an attempt to connect. */
enum watched {
	WATCHED_NOT,
	WATCHED,	 /* how it ends */
	WATCHED_MAY_TRY, /* of a choice: the same, and it may be the trial of another backend */
	WATCHED_TRIAL,	 /* the same, and it is the trial of its backend (quarantined.h) */
	WATCHED_FAILED,	 /* nothing: it has failed, but the client may go on */
	WATCHED_COUNTED, /* the same, of a connection that was not watched */
};

struct choice {
	struct backend backend;
	__u32 service;
	__u8 masquerade;
	__u8 sticky;  /* the service has session affinity */
	__u8 counts;  /* for the load of the backend */
	__u8 watched; /* of enum watched */
};
