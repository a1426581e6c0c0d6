/*
 * Most first packets, and all datagrams of flows that were never translated, go where no Service is.
 * Two bits tell most of them, by their destination: the agent sets them before it writes a row that
 * names the address. They may say yes for nothing, but never no for something, and say yes to
 * everything until the agent has been through all rows. What ServiceCIDRs give out are too many
 * addresses for bits, so one network around all of them is compared.
 */

#define DESTINATION_BITS (1 << 20)

struct destinations {
	struct address network_v4;
	struct address mask_v4;
	struct address network_v6;
	struct address mask_v6;
	__u8 served[DESTINATION_BITS / 8];    /* frontends, and addresses of the node */
	__u8 endpoints[DESTINATION_BITS / 8]; /* backends of any service */
};

MAP("array", __u32, struct destinations, destinations, 1, BPF_F_MMAPABLE);

/*
 * The same in Python: bpfsvc/datapath/destinations.py. Builds share the map while its layout is the
 * same, so whoever changes this changes that: else the bits of one would be cleared by the other.
 */
static inline __u32 destination_place(const struct address *address)
{
	__u64 high = (__u64)address->words[1] << 32 | address->words[0];
	__u64 low = (__u64)address->words[3] << 32 | address->words[2];
	__u64 hash = (high * 0x9e3779b97f4a7c15ULL ^ low) * 0xff51afd7ed558ccdULL;

	return hash >> 44;
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

/* Whether a packet to this address may be one for a frontend. */
static inline bool destination_served(const struct address *address)
{
	struct destinations *known = destinations_get();

	if (!known || destination_bit(known->served, destination_place(address)))
		return true;
	return address_is_v4(address) ?
		       address_within(address, &known->network_v4, &known->mask_v4) :
		       address_within(address, &known->network_v6, &known->mask_v6);
}

/* Whether anything at all has to be thought of before a packet may go there. */
static inline bool destination_matters(const struct address *address)
{
	struct destinations *known = destinations_get();

	return destination_served(address) || !known ||
	       destination_bit(known->endpoints, destination_place(address));
}
