/*
 * How long backends took to answer the SYNs of this machine's own sockets, those of pods among them,
 * whatever carries their packets. The kernel's clock is exact here, as connections are dated by a
 * coarse one.
 */
#pragma once

#include "lib/map.h"
#include "lib/verifier.h"

enum {
	CONNECTING_SOCKETS = 16384,    /* a power of two */
	CONNECTING_LONGEST_SHIFT = 38, /* 2^38 ns, 275 seconds: Linux gives up earlier */
	CONNECT_BUCKETS = 16,	       /* a power of two */
	CONNECT_SHORTEST_SHIFT = 6,    /* the first bucket ends at 64 microseconds */
	CONNECT_LONGEST_UNITS =
		(1 << (CONNECT_BUCKETS - 1)) - 1, /* of that time, in the last one */
};

/*
 * A socket that is connecting. It is known by a part of its address in memory: not all sockets have
 * a cookie. Where its place is taken by another socket that is connecting, its time is not known.
 */
struct connecting {
	__u64 begun; /* ns, CLOCK_MONOTONIC; 0: the place is free */
	__u32 socket;
	__u32 zero;
};

MAP("array", __u32, struct connecting, connecting, CONNECTING_SOCKETS, 0);

/*
 * Each bucket ends at twice the time of the one before, and the last one has no end. A connect that
 * took as long as its bucket's end is in the next one.
 */
struct connect_times {
	__u64 buckets[CONNECT_BUCKETS];
	__u64 sum_us;
};

/* By the index into backend_counters, as backend_failures. */
MAP("hash", __u32, struct connect_times, connect_times, MAX_BACKENDS, BPF_F_NO_PREALLOC);

static inline struct connecting *connecting_place(__u32 socket)
{
	/* Sockets are larger than 1024 bytes, and lie in slabs one after another. */
	__u32 index = (socket ^ socket >> 14) & (CONNECTING_SOCKETS - 1);

	return connecting.lookup(&index);
}

/* Note that a socket sends its first SYN. */
static inline void connecting_begin(__u32 socket)
{
	struct connecting *entry = connecting_place(socket);
	__u64 now = bpf_ktime_get_ns();

	if (!entry || (entry->begun && entry->socket != socket &&
		       !((now - entry->begun) >> CONNECTING_LONGEST_SHIFT)))
		return;
	entry->socket = socket;
	entry->begun = now;
}

/*
 * Return the microseconds since a socket has sent its first SYN, plus 1; 0 if that is not known. A
 * socket is counted once, also if the programs of two builds see it.
 */
static inline __u64 connecting_end(__u32 socket)
{
	struct connecting *entry = connecting_place(socket);
	__u64 begun;

	if (!entry || entry->socket != socket)
		return 0;
	begun = entry->begun;
	entry->begun = 0;
	return begun ? 1 + (bpf_ktime_get_ns() - begun) / 1000 : 0;
}

/* Return how many bits a number needs, which is below 65536; without a branch. */
static inline __u32 bits_of(__u32 number)
{
	__u32 shift = not_zero(number >> 8) << 3, bits = shift;

	number >>= shift;
	shift = not_zero(number >> 4) << 2;
	bits += shift;
	number >>= shift;
	shift = not_zero(number >> 2) << 1;
	bits += shift;
	number >>= shift;
	return bits + not_zero(number) + not_zero(number >> 1);
}

static inline void connect_time_count(__u32 backend, __u64 us)
{
	struct connect_times *entry, none = {};
	__u64 units = us >> CONNECT_SHORTEST_SHIFT;
	__u32 bucket = bits_of(units < CONNECT_LONGEST_UNITS ? units : CONNECT_LONGEST_UNITS);

	if (!backend)
		return;
	entry = connect_times.lookup_or_try_init(&backend, &none);
	if (!entry)
		return;
	/* Masked where the verifier of Linux 5.10 sees it, too. */
	asm volatile("" : "+r"(bucket));
	__sync_fetch_and_add(&entry->buckets[bucket & (CONNECT_BUCKETS - 1)], 1);
	__sync_fetch_and_add(&entry->sum_us, us);
}
