/*
 * The checksum of SCTP (RFC 9260, 6.8) covers the whole packet, which is not read here. CRC32c is
 * linear: changing some bits changes it by the CRC of these bits alone, followed by a zero byte
 * for each byte of the packet that follows them. Advancing a CRC over 2^n zero bytes is a matrix
 * over GF(2); the agent writes one for each n.
 */
#pragma once

#include "lib/map.h"

enum { CRC32C_STEPS = 16 }; /* an IP packet has less than 2^16 bytes */

struct crc32c_step {
	__u32 columns[32]; /* what each bit of the CRC becomes */
};

MAP("array", __u32, struct crc32c_step, crc32c_steps, CRC32C_STEPS, 0);

static inline __u32 crc32c_multiply(const struct crc32c_step *step, __u32 crc)
{
	__u32 product = 0;

#pragma clang loop unroll(disable)
	for (int bit = 0; bit < 32; bit++)
		product ^= step->columns[bit] & -(crc >> bit & 1);
	return product;
}

/* Advance `crc` over zero bytes. */
static inline __u32 crc32c_advance(__u32 crc, __u32 bytes)
{
#pragma clang loop unroll(disable)
	for (__u32 n = 0; n < CRC32C_STEPS; n++) {
		__u32 index = n;
		struct crc32c_step *step;

		if (!(bytes >> n & 1))
			continue;
		step = crc32c_steps.lookup(&index);
		if (step)
			crc = crc32c_multiply(step, crc);
	}
	return crc;
}
