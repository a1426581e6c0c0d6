/* A place for the bytes of a packet that are summed, or quoted: the stack is too small for them. */

/* Enough for every header; RFC 1812, 4.3.2.3 and RFC 4443, 3.1 allow more. */
#define QUOTE_BYTES 128

/* Twice the room, for what bounds the size to the verifier's satisfaction is a mask. */
struct quote {
	__u8 bytes[2 * QUOTE_BYTES];
};

MAP("percpu_array", __u32, struct quote, quotes, 1, 0);
