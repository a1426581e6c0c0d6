/* Bytes of a packet that are summed or quoted; for one packet at a time on each CPU. */
#pragma once

#include "lib/map.h"

/*
 * Bytes of a packet that are summed or quoted: all headers. RFC 1812, 4.3.2.3 and RFC 4443 allow
 * more.
 */
#define QUOTE_BYTES 128

/* Twice the room: the verifier knows the size by a mask, which allows more than QUOTE_BYTES. */
struct quote {
	__u8 bytes[2 * QUOTE_BYTES];
};

MAP("percpu_array", __u32, struct quote, quotes, 1, 0);
