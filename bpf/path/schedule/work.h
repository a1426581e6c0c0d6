/*
 * All that schedules calculate, in a map: the verifier does not follow values in a map
 * (lib/verifier.h), so they do not multiply the paths through all code that comes after.
 */
#pragma once

#include "lib/map.h"
#include "maps/frontends.h"
#include "maps/localities.h"
#include "maps/schedule_tables.h"
#include "maps/spills.h"

/* The least or the most loaded backend so far of those that an address has. */
struct compared_member {
	__u64 cost;
	__u64 weight;
	__u64 joined;
	__u64 counters;
};

/* Whether the connection at hand overflows: see path/schedule/spill.h. */
struct spilling {
	struct spill_key key; /* of the service that was asked about last */
	__u32 needed;	      /* 1 if its policy spills, else 0 */
	__u32 spills;	      /* 1 if the connection does, else 0 */
	__u32 untried;	      /* so many backends on trial, the last ones, are not for it */
	__s64 sum;	      /* of the loads of those compared, */
	__s64 near;	      /* and of the near ones among them */
};

struct schedule_work {
	struct schedule_key key;
	__u32 number;
	__u32 slot;
	/* of a comparison of loads: */
	__u64 cost;   /* of the best backend so far, */
	__u64 weight; /* its weight, */
	__u32 place;  /* and its place */
	__u32 size;
	__u32 places;
	__u32 drawn;
	__u64 of_active; /* what counts for how much */
	__u64 of_inactive;
	__u64 of_next;
	__u64 busy_first; /* 0: an idle backend costs nothing; else all bits */
	__u64 limited;	  /* all bits: the weight is a limit; else 0 */
	/* of one that keeps an address where it is: */
	struct frontend_key asked;
	__u32 stepped; /* 1: the step of the packet at hand was taken */
	__u32 done; /* 1: `place` is the position of the packet at hand, for the service of `key` */
	struct locality_key locality;
	__u32 kept_place; /* of the least loaded member, */
	__u64 kept_busy;  /* 1: which has more active connections than its weight */
	__u64 idle;	  /* 1: a backend has less than half as many as its weight */
	__u64 members;
	struct compared_member least;
	struct compared_member most;
	struct spilling spilling;
	struct policy policies[2]; /* of the client, and of all serving endpoints */
	__u32 shift;		   /* of 1, to an enum among */
	__u32 class;		   /* of a client that explain asks about */
};

MAP("percpu_array", __u32, struct schedule_work, schedule_works, 1, 0);

static inline struct schedule_work *schedule_work_get(void)
{
	__u32 only = 0;

	return schedule_works.lookup(&only);
}

/*
 * Return how many positions a number chooses from: the rows of the table, or the slots where there
 * is no table.
 */
static inline __u32 schedule_places(const struct policy *policy)
{
	__u32 table = (policy->table | -policy->table) >> 31;

	return policy->table | (policy->size & (table - 1));
}
