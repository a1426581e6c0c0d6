/*
 * Frontends: where clients send to. An entry names the slots of one generation of a service's
 * backends that serve each class of clients. It changes in one step, so a Service is never seen
 * half written. NodePorts have the wildcard address of their family. An entry with protocol 0 and
 * port 0 means all of an address that has no other entry.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"
#include "maps/node_addresses.h"

enum { MAX_TRIALS = 255 };

struct policy {
	__u32 first; /* slot */
	__u32 size;  /* 0: no endpoint serves */
	__u32 table; /* places in the schedule's table; 0: one for each slot, without a table */
	__u8 masquerade;
	__u8 reject; /* without an endpoint: refuse the client, else drop silently */
	__u8 trials; /* backends on trial, in the slots behind (quarantined.h) */
	__u8 spills; /* 1: may overflow to all that serve; their slots precede these (spills.h) */
};

/* What gives the number of a place in the schedule's table. */
enum schedule {
	SCHEDULE_RANDOM,
	SCHEDULE_ROUND,	      /* a counter of the service, one more for each connection */
	SCHEDULE_SOURCE,      /* the client's address */
	SCHEDULE_SOURCE_PORT, /* and its port */
	SCHEDULE_DESTINATION, /* the address that the client asked for */
	SCHEDULE_MAGLEV,      /* as SCHEDULE_SOURCE, by the hash of Maglev */
	SCHEDULE_MAGLEV_PORT, /* as SCHEDULE_SOURCE_PORT, by the hash of Maglev */
	/* From here on by the loads of the backends, which are counted for these. */
	SCHEDULE_LC,   /* least connections */
	SCHEDULE_WLC,  /* the same, by weight */
	SCHEDULE_SED,  /* shortest expected delay */
	SCHEDULE_NQ,   /* the same, but idle ones first */
	SCHEDULE_OVF,  /* the highest weight, until that many connections are active */
	SCHEDULE_TWOS, /* the better one of two at random */
	/* From here on with the backends of the address in localities. */
	SCHEDULE_LBLC,	/* the one chosen last, unless it is overloaded */
	SCHEDULE_LBLCR, /* the least loaded one of a set, unless it is overloaded */
};

/* 1 if the loads of backends are counted for a schedule, else 0; without a branch. */
static inline __u32 schedule_counts(__u32 schedule)
{
	asm("" : "+r"(schedule));
	return (SCHEDULE_LC - 1 - schedule) >> 31;
}

/*
 * What becomes of TCP connections to an endpoint that leaves; the agent sees to it. Unless they are
 * kept, calls of pods' sockets are left to tc, where each connection has an entry.
 */
enum removal {
	REMOVAL_KEEP,
	REMOVAL_DRAIN,
	REMOVAL_RESET,
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
	struct policy pod; /* the three in the order of enum client_class */
	struct policy node;
	struct policy other;
	__u32 affinity_seconds; /* 0: no session affinity */
	__u8 restricted;	/* clients must be in source_ranges */
	__u8 schedule;		/* of enum schedule */
	__u8 echo;		/* its address is in echo_addresses for it */
	__u8 removal;		/* of enum removal */
	__u8 watched;		/* connect results are recorded (backend_outcomes.h) */
	__u8 counted;		/* loads of backends are, whatever the schedule */
	__u16 limit;		/* of open connections to each backend; 0: none */
};

enum client_class {
	CLIENT_POD,
	CLIENT_NODE,
	CLIENT_OTHER,
	CLIENT_UNKNOWN, /* asked by `bpfsvc explain`: to be found out */
};

MAP("hash", struct frontend_key, struct frontend, frontends, MAX_FRONTENDS, BPF_F_NO_PREALLOC);

/*
 * Return the frontend for `key`, which becomes the key of its entry: NodePorts have another
 * address.
 */
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

/* Return the entry for all of an address that has no other entry; NULL if there is none. */
static inline struct frontend *frontend_rest(const struct address *address)
{
	struct frontend_key rest = {.address = *address};

	return frontends.lookup(&rest);
}

/* True for a backend that a client may stay with: if a policy spills, any one that serves. */
static inline bool policy_has(const struct policy *policy, __u32 slot)
{
	__u32 first = policy->first & ((__u32)policy->spills - 1);

	return slot >= first && slot - first < policy->first - first + policy->size;
}

/*
 * The policy for a class of clients. (By an index: the verifier would follow three branches through
 * all that comes after.)
 */
static inline const struct policy *policy_for(const struct frontend *frontend, __u32 client)
{
	const struct policy *policies = &frontend->pod;

	return policies + (client < CLIENT_OTHER ? client : CLIENT_OTHER);
}
