/*
 * Localities: for schedules that lead an address to the same backends again and again, which ones
 * these are. A service has an entry for each of its addresses. The agent makes entries and removes
 * them; the programs write the values. A backend is known by the id of its counters, which it
 * keeps when others come and go.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

enum {
	LOCALITY_BITS = 7,
	LOCALITY_MEMBERS = 1 << LOCALITY_BITS,
};

/* Which backends of the service are chosen from. */
enum among {
	AMONG_ALL,
	AMONG_LOCAL, /* those on this node, by policy */
	AMONG_NEAR,  /* those near by topology, while connections do not spill over */
};

struct locality_key {
	__u32 service;
	struct address address; /* that the client asks for */
	__u8 local;		/* of enum among; so named since it was 0 or 1, as entries stay */
	__u8 schedule;		/* another schedule begins anew */
	__u8 zero[2];
};

struct locality_member {
	__u32 counters; /* of the backend; 0: none */
	__u32 joined;	/* a higher number than those that joined before it */
};

struct locality {
	__u64 changed; /* when a member joined or left the last time: CLOCK_MONOTONIC in ns */
	__u32 joins;   /* the highest number so far */
	__u32 last;    /* of SCHEDULE_LBLC: the counters of the backend chosen last */
	struct locality_member members[LOCALITY_MEMBERS]; /* of SCHEDULE_LBLCR */
};

MAP("hash", struct locality_key, struct locality, localities, MAX_SCHEDULE_CHUNKS,
    BPF_F_NO_PREALLOC);

/*
 * The two places where a member may be. Ids of a service mostly follow each other, so the first
 * ones are all different. There are twice as many places as backends that are compared.
 */
static inline __u32 locality_first(__u32 counters)
{
	return counters & (LOCALITY_MEMBERS - 1);
}

static inline __u32 locality_second(__u32 counters)
{
	return counters * 0x61c88647 >> (32 - LOCALITY_BITS);
}
