/*
 * Most first packets, and all datagrams of flows that were never translated, go where no Service is.
 * Two bits tell most of them: one by the address that they are for, the other by address, port and
 * protocol. The agent sets them before it writes a row of that key. They may say yes for nothing, but never no for something, and say yes to
 * everything until the agent has been through all rows. What ServiceCIDRs give out are too many
 * addresses for bits, so one network around all of them is compared.
 */

#define DESTINATION_BITS (1 << 20)

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
 * The same in Python: bpfsvc/datapath/destinations.py. Builds share the map while its layout is the
 * same, so whoever changes this changes that: else the bits of one would be cleared by the other.
 */
static inline __u32 destination_place(const struct address *address, __be16 port, __u8 protocol)
{
	__u64 high = (__u64)address->words[1] << 32 | address->words[0];
	__u64 low = (__u64)address->words[3] << 32 | address->words[2];
	__u64 rest = (__u64)protocol << 16 | bpf_ntohs(port);
	__u64 hash = high * 0x9e3779b97f4a7c15ULL ^ rest * 0xc4ceb9fe1a85ec53ULL ^ low;

	return hash * 0xff51afd7ed558ccdULL >> 44;
}

static inline struct destinations *destinations_get(void)
{
	__u32 only = 0;

	return destinations.lookup(&only);
}

static inline bool destination_bit(const __u8 *bits, __u32 place)
{
	return bits[place / 8 % (DESTINATION_BITS / 8)] >> place % 8 & 1;
}

static inline bool address_served(const struct destinations *known, const struct address *address)
{
	if (destination_bit(known->served, destination_place(address, 0, 0)))
		return true;
	return address_is_v4(address) ?
		       address_within(address, &known->network_v4, &known->mask_v4) :
		       address_within(address, &known->network_v6, &known->mask_v6);
}

/* Whether a packet to this address may be one for a frontend. */
static inline bool destination_served(const struct address *address)
{
	struct destinations *known = destinations_get();

	return !known || address_served(known, address);
}

/* Whether anything at all has to be thought of before the first packet of this flow may pass. */
static inline bool destination_matters(const struct flow *flow)
{
	struct destinations *known = destinations_get();

	return !known || address_served(known, &flow->destination) ||
	       destination_bit(known->backends,
			       destination_place(&flow->destination, flow->destination_port,
						 flow->protocol));
}
