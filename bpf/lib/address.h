/*
 * Addresses of both families in one form: 16 bytes in network order, IPv4 as v4-mapped IPv6
 * (RFC 4291, 2.5.5.2). One key layout and one code path serve both families.
 */
#pragma once

#define AF_INET 2
#define AF_INET6 10

struct address {
	__be32 words[4];
};

static inline void address_from_v4(struct address *address, __be32 v4)
{
	address->words[0] = 0;
	address->words[1] = 0;
	address->words[2] = bpf_htonl(0xffff);
	address->words[3] = v4;
}

static inline void address_from_v6(struct address *address, const __be32 *v6)
{
	address->words[0] = v6[0];
	address->words[1] = v6[1];
	address->words[2] = v6[2];
	address->words[3] = v6[3];
}

static inline bool address_equal(const struct address *a, const struct address *b)
{
	return a->words[3] == b->words[3] && a->words[2] == b->words[2] &&
	       a->words[1] == b->words[1] && a->words[0] == b->words[0];
}

/* Return 0 if two addresses are equal. Without a branch: a search would have four for each row. */
static inline __be32 address_difference(const struct address *a, const struct address *b)
{
	return (a->words[0] ^ b->words[0]) | (a->words[1] ^ b->words[1]) |
	       (a->words[2] ^ b->words[2]) | (a->words[3] ^ b->words[3]);
}

static inline bool address_is_zero(const struct address *address)
{
	return !(address->words[0] | address->words[1] | address->words[2] | address->words[3]);
}

static inline bool address_is_v4(const struct address *address)
{
	return address->words[0] == 0 && address->words[1] == 0 &&
	       address->words[2] == bpf_htonl(0xffff);
}

static inline bool address_is_v4_loopback(const struct address *address)
{
	return address_is_v4(address) &&
	       (address->words[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

/* True for any address of 127/8, and for ::1. */
static inline bool address_is_loopback(const struct address *address)
{
	return address_is_v4_loopback(address) ||
	       (!(address->words[0] | address->words[1] | address->words[2]) &&
		address->words[3] == bpf_htonl(1));
}

static inline bool address_within(const struct address *address, const struct address *network,
				  const struct address *mask)
{
	return (address->words[0] & mask->words[0]) == network->words[0] &&
	       (address->words[1] & mask->words[1]) == network->words[1] &&
	       (address->words[2] & mask->words[2]) == network->words[2] &&
	       (address->words[3] & mask->words[3]) == network->words[3];
}

/*
 * 0 for IPv4, 1 for IPv6; without a branch, which the verifier would follow both ways to the end.
 */
static inline __u32 family_offset(const struct address *address)
{
	__u32 other = address->words[0] | address->words[1] |
		      (address->words[2] ^ bpf_htonl(0xffff));

	return (other | -other) >> 31;
}
