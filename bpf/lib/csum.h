/* Checksums in one's complement (RFC 1071), and what they change by when a flow is rewritten. */
#pragma once

#include "lib/flow.h"

/* Fold a sum in one's complement to what a checksum holds (RFC 1071). */
static inline __sum16 checksum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Fold a sum in one's complement to the difference that bpf_l4_csum_replace() takes. */
static inline __u32 checksum_difference(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum + (sum >> 32);
}

/* The difference that one word of both addresses makes (RFC 1624). IPv4 has only the last word. */
static inline __u64 addresses_difference(const struct flow *before, const struct flow *after,
					 int word)
{
	return (__u64)(__u32)~before->source.words[word] + after->source.words[word] +
	       (__u32)~before->destination.words[word] + after->destination.words[word];
}

/* The difference that the ports make: both are halves of one word. */
static inline __u64 ports_difference(const struct flow *before, const struct flow *after)
{
	return (__u64)(__u16)~before->source_port + after->source_port +
	       (__u16)~before->destination_port + after->destination_port;
}

/* The difference that a whole flow makes, in a pseudo header and a transport header. */
static inline __u64 flow_difference(const struct flow *before, const struct flow *after, bool v4)
{
	__u64 sum = addresses_difference(before, after, 3) + ports_difference(before, after);

	if (v4)
		return sum;
	return sum + addresses_difference(before, after, 0) +
	       addresses_difference(before, after, 1) + addresses_difference(before, after, 2);
}
