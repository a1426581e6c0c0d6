/*
 * Which destinations may be known. Most first packets, and all datagrams of flows that were never
 * translated, go to no Service. Two bits show that for most of these packets: one bit is found by
 * the destination address, the other by address, port and protocol. The agent sets a bit before it
 * writes an entry with that key. Until it has set the bits of all entries, every bit is set. So a
 * bit may be set for a destination without an entry, but it is never clear for a destination that
 * has one. ServiceCIDRs have too many addresses for bits: addresses are compared with one network
 * around all of them instead.
 */
#pragma once

#include "lib/address.h"
#include "lib/flow.h"
#include "lib/map.h"

enum {
	DESTINATION_ORDER = 20, /* of so many bits is the index of one */
	DESTINATION_BITS = 1 << DESTINATION_ORDER,
};

/* Odd numbers without a pattern. The parts of a destination are multiplied by them. */
enum {
	DESTINATION_HASH_HIGH = 0x9e3779b97f4a7c15ULL,
	DESTINATION_HASH_REST = 0xc4ceb9fe1a85ec53ULL,
	DESTINATION_HASH_ALL = 0xff51afd7ed558ccdULL,
};

struct destinations {
	struct address network_v4;
	struct address mask_v4;
	struct address network_v6;
	struct address mask_v6;
	__u8 served[DESTINATION_BITS / 8];   /* frontends, and addresses of the node */
	__u8 backends[DESTINATION_BITS / 8]; /* of any service: the keys of `endpoints` */
};

MAP("array", __u32, struct destinations, destinations, 1, BPF_F_MMAPABLE);

/*
 * The agent finds bits by the same rule, with these constants:
 * bpfsvc/datapath/maps/destinations.py. Builds share the map while its layout is the same. So a
 * change of the rule needs a change of the layout too, or else the agent would clear bits that the
 * programs of the other build look for.
 */
static inline __u32 destination_index(const struct address *address, __be16 port, __u8 protocol)
{
	__u64 high = (__u64)address->words[1] << 32 | address->words[0];
	__u64 low = (__u64)address->words[3] << 32 | address->words[2];
	__u64 rest = (__u64)protocol << 16 | bpf_ntohs(port);
	__u64 hash = high * DESTINATION_HASH_HIGH ^ rest * DESTINATION_HASH_REST ^ low;

	return hash * DESTINATION_HASH_ALL >> (64 - DESTINATION_ORDER);
}

static inline struct destinations *destinations_get(void)
{
	__u32 only = 0;

	return destinations.lookup(&only);
}

static inline bool destination_bit(const __u8 *bits, __u32 bit)
{
	return bits[bit / 8 % (DESTINATION_BITS / 8)] >> bit % 8 & 1;
}

static inline bool address_may_be_frontend(const struct destinations *known,
					   const struct address *address)
{
	if (destination_bit(known->served, destination_index(address, 0, 0)))
		return true;
	return address_is_v4(address) ?
		       address_within(address, &known->network_v4, &known->mask_v4) :
		       address_within(address, &known->network_v6, &known->mask_v6);
}

/* True if a packet to this address may be for a frontend. */
static inline bool destination_may_be_frontend(const struct address *address)
{
	struct destinations *known = destinations_get();

	return !known || address_may_be_frontend(known, address);
}

/*
 * True if a flow may be one to a backend, of an address of the node or of a service, or from
 * `anywhere`.
 */
static inline bool flow_may_be_to_backend(const struct flow *flow, bool anywhere)
{
	struct destinations *known = destinations_get();

	return !known || ((anywhere | destination_bit(known->served,
						      destination_index(&flow->source, 0, 0))) &&
			  destination_bit(known->backends, destination_index(&flow->destination,
									     flow->destination_port,
									     flow->protocol)));
}

/* True if a first packet of this flow may be for a frontend, or for a backend of a service. */
static inline bool destination_may_be_known(const struct flow *flow)
{
	struct destinations *known = destinations_get();

	return !known || address_may_be_frontend(known, &flow->destination) ||
	       destination_bit(known->backends,
			       destination_index(&flow->destination, flow->destination_port,
						 flow->protocol));
}
