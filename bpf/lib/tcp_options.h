/* The only option of TCP that the programs know: by how much windows are scaled (RFC 7323, 2.2). */
#pragma once

#include "lib/wire.h"

#define TCP_END_OF_OPTIONS 0
#define TCP_NO_OPERATION 1
#define TCP_WINDOW_SCALE 3

#define TCP_MAX_WINDOW_SHIFT 14
#define TCP_MAX_OPTIONS 20 /* of a SYN; paddings count */

struct tcp_option {
	__u8 kind;
	__u8 length; /* with these two bytes */
	__u8 value;
};

/* Return by how many bits the sender of a SYN will shift its windows, plus one. */
static inline __u8 tcp_window_shift(struct __sk_buff *skb, __u32 l4)
{
	__u32 at = l4 + TCP_HEADER_LENGTH;

#pragma clang loop unroll(disable)
	for (int i = 0; i < TCP_MAX_OPTIONS; i++) {
		struct tcp_option option;

		/* One at the end that has no value is none that matters. */
		if (bpf_skb_load_bytes(skb, at, &option, sizeof(option)) ||
		    option.kind == TCP_END_OF_OPTIONS)
			break;
		if (option.kind == TCP_WINDOW_SCALE)
			return 1 + (option.value < TCP_MAX_WINDOW_SHIFT ? option.value :
									  TCP_MAX_WINDOW_SHIFT);
		if (option.kind != TCP_NO_OPERATION && option.length < 2)
			break;
		at += option.kind == TCP_NO_OPERATION ? 1 : option.length;
	}
	return 1;
}
