/* Wire formats, cut down to what the walk reads or writes. All fields are in network order. */

#define TC_ACT_UNSPEC (-1) /* no verdict: whoever else is attached goes on */
#define TC_ACT_SHOT 2

#define ETH_HLEN 14
#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd

#define PROTO_ICMP 1
#define PROTO_TCP 6
#define PROTO_UDP 17
#define PROTO_ICMPV6 58
#define PROTO_SCTP 132

/* IPv6 extension headers (RFC 8200; RFC 4302 for the last) that may stand before a transport. */
#define IPV6_HOP_BY_HOP 0
#define IPV6_ROUTING 43
#define IPV6_FRAGMENT 44
#define IPV6_DESTINATION 60
#define IPV6_AUTHENTICATION 51

#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV4_MORE_FRAGMENTS 0x2000

#define IPV4_TTL_OFFSET 8
#define IPV4_CHECKSUM_OFFSET 10
#define IPV4_SOURCE_OFFSET 12
#define IPV4_DESTINATION_OFFSET 16
#define IPV4_HEADER_LENGTH 20
#define IPV6_HOP_LIMIT_OFFSET 7
#define IPV6_SOURCE_OFFSET 8
#define IPV6_DESTINATION_OFFSET 24
#define IPV6_HEADER_LENGTH 40

/* Both headers up to their addresses. */
struct ipv4_start {
	__u8 version_and_length;
	__u8 tos;
	__be16 total_length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__sum16 checksum;
};

struct ipv6_start {
	__be32 version_and_flow;
	__be16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
};

/* The first eight bytes of TCP, UDP and of every transport quoted in an ICMP error. */
struct ports {
	__be16 source;
	__be16 destination;
};

#define TCP_FLAGS_OFFSET 13
#define TCP_CHECKSUM_OFFSET 16
#define TCP_HEADER_LENGTH 20
#define UDP_CHECKSUM_OFFSET 6
#define UDP_HEADER_LENGTH 8
#define SCTP_CHECKSUM_OFFSET 8
#define SCTP_CHUNK_OFFSET 12
#define SCTP_INIT 1

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* ICMP and ICMPv6 errors alike: eight bytes, then the packet that caused them. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__sum16 checksum;
	__be32 detail;
};

#define ICMP_CHECKSUM_OFFSET 2

#define ICMP_ECHO_REQUEST 8
#define ICMPV6_ECHO_REQUEST 128

/* RFC 792: unreachable, source quench, time exceeded, parameter problem. */
static inline bool icmp_is_error(__u8 type)
{
	return type == 3 || type == 4 || type == 11 || type == 12;
}

/* RFC 4443, section 2.1: error messages have a type below 128. */
static inline bool icmpv6_is_error(__u8 type)
{
	return type < 128;
}
