/*
 * How many ICMP errors this node sends, by the kernel's own rules and sysctls: to one address a
 * burst, then one in each interval (icmp_ratelimit); to all together so many in a second
 * (icmp_msgs_per_sec). Each number is the time at which the next error would be due if there were
 * no bursts; it is ahead of the clock by what has been sent of a burst.
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"
#include "maps/settings.h"

#define ICMP_TARGETS 4096 /* addresses at a time */
#define ICMP_TARGET_BURST 6

MAP("lru_hash", struct address, __u64, icmp_targets, ICMP_TARGETS, 0);
MAP("array", __u32, __u64, icmp_total, 1, 0);

/* True if one more is within a burst of `burst`, one in each `interval` of nanoseconds. */
static inline bool icmp_is_due(__u64 due, __u64 now, __u64 interval, __u32 burst)
{
	return due <= now + interval * (burst - 1);
}

static inline __u64 icmp_next_due(__u64 due, __u64 now, __u64 interval)
{
	return (due > now ? due : now) + interval;
}

/* Count an error to `target`. False if there were too many, and it must not be sent. */
static inline bool icmp_may_be_sent(const struct settings *settings, struct address *target,
				    bool v4)
{
	__u32 milliseconds = v4 ? settings->icmp_interval_v4 : settings->icmp_interval_v6;
	__u64 interval = milliseconds * (NS_PER_SECOND / 1000), now, next;
	__u64 of_all = NS_PER_SECOND;
	__u64 *total, *known;
	__u32 only = 0;

	if (milliseconds == ICMP_UNLIMITED)
		return true;
	if (!settings->icmp_per_second)
		return false;
	now = bpf_ktime_get_coarse_ns();
	of_all /= settings->icmp_per_second;
	total = icmp_total.lookup(&only);
	if (!total || !icmp_is_due(*total, now, of_all, settings->icmp_burst))
		return false;
	known = icmp_targets.lookup(target);
	next = known ? *known : 0;
	if (!icmp_is_due(next, now, interval, ICMP_TARGET_BURST))
		return false;
	next = icmp_next_due(next, now, interval);
	if (known)
		*known = next;
	else
		icmp_targets.update(target, &next);
	/* One on average. If it were known exactly, others could find out which ports are open. */
	*total = icmp_next_due(*total, now, of_all * (bpf_get_prandom_u32() % 3));
	return true;
}
