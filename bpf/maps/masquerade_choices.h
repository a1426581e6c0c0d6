/*
 * Where an interface has several addresses, which of them packets are masqueraded to: by the next
 * hop of IPv4, by the destination of IPv6. The agent writes what the kernel's MASQUERADE would
 * choose (bpfsvc/datapath/netlink/masquerade.py).
 */
#pragma once

#include "lib/address.h"
#include "lib/map.h"

/* Of a key before the address; they count in each. */
enum { MASQUERADE_CHOICE_BITS = 32 };

struct masquerade_choice {
	__u32 prefix; /* bits that count, of all that follows */
	__u32 choices;
	struct address towards;
};

MAP("lpm_trie", struct masquerade_choice, struct address, masquerade_choices, MAX_INTERFACES,
    BPF_F_NO_PREALLOC);

/* Replace `address` if there is an exception for this next hop or destination. */
static inline void masquerade_choose(__u32 choices, const struct address *towards,
				     struct address *address)
{
	struct masquerade_choice key = {
		.prefix = MASQUERADE_CHOICE_BITS + 8 * sizeof(*towards),
		.choices = choices,
		.towards = *towards,
	};
	struct address *chosen = masquerade_choices.lookup(&key);

	if (chosen)
		*address = *chosen;
}
