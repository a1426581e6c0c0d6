/* Wire formats, as far as they are read or written here. All fields are in network order. */
#pragma once

#define TC_ACT_UNSPEC (-1) /* no verdict: other programs and the stack decide */
#define TC_ACT_SHOT 2

#define PACKET_HOST 0 /* sent to the hardware address of the interface */
#define PACKET_OTHERHOST 3

#define ETH_HLEN 14
#define ETHERTYPE_VLAN 0x8100	      /* IEEE 802.1Q; the tag follows */
#define ETHERTYPE_SERVICE_VLAN 0x88a8 /* IEEE 802.1ad */
#define VLAN_HLEN 4
#define VLAN_ID 0x0fff /* of a tag; 0: the frame has a priority, and belongs to no VLAN */
#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd

#define PROTO_ICMP 1
#define PROTO_TCP 6
#define PROTO_UDP 17
#define PROTO_ICMPV6 58
#define PROTO_SCTP 132

/* IPv6 extension headers (RFC 8200; the last: RFC 4302) that may precede a transport header. */
#define IPV6_HOP_BY_HOP 0
#define IPV6_ROUTING 43
#define IPV6_FRAGMENT 44
#define IPV6_DESTINATION 60
#define IPV6_AUTHENTICATION 51

#define IPV4_FRAGMENT_OFFSET 0x1fff
#define IPV4_MORE_FRAGMENTS 0x2000

#define IPV4_LENGTH_OFFSET 2
#define IPV4_TTL_OFFSET 8
#define IPV4_CHECKSUM_OFFSET 10
#define IPV4_SOURCE_OFFSET 12
#define IPV4_DESTINATION_OFFSET 16
#define IPV4_HEADER_LENGTH 20
#define IPV4_WITHOUT_OPTIONS 0x45 /* version, and length in words */
#define IPV6_HOP_LIMIT_OFFSET 7
#define IPV6_SOURCE_OFFSET 8
#define IPV6_DESTINATION_OFFSET 24
#define IPV6_HEADER_LENGTH 40

/* IP headers, up to their addresses. */
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

/*
 * The hop-by-hop header of BIG TCP (RFC 2675): a packet of segmentation offload that is longer than
 * an IPv6 header can say. Its segments do not have this header. Newer kernels make none.
 */
struct ipv6_jumbo {
	__u8 next_header;
	__u8 length; /* in units of eight bytes, without the first */
	__u8 option;
	__u8 option_length;
	__be32 payload_length;
};

#define IPV6_OPTION_JUMBO 0xc2
#define IPV6_OPTION_PADDING 1

/* The first eight bytes of TCP, UDP and of every transport quoted in an ICMP error. */
struct ports {
	__be16 source;
	__be16 destination;
};

#define TCP_SEQUENCE_OFFSET 4
#define TCP_PROGRESS_OFFSET 8
#define TCP_CHECKSUM_OFFSET 16
#define TCP_HEADER_LENGTH 20
#define UDP_CHECKSUM_OFFSET 6
#define UDP_HEADER_LENGTH 8
#define SCTP_CHECKSUM_OFFSET 8
#define SCTP_CHUNK_OFFSET 12
/* Types of chunks, and the flag of those that end an association. */
#define SCTP_INIT 1
#define SCTP_ABORT 6
#define SCTP_COOKIE_ECHO 10
#define SCTP_COOKIE_ACK 11
#define SCTP_SHUTDOWN_COMPLETE 14
#define SCTP_REFLECTED_TAG 1

/* The header, and the start of the first chunk. */
struct sctp_start {
	__be16 source;
	__be16 destination;
	__be32 tag;
	__be32 checksum;
	__u8 chunk;
	__u8 flags;
};

/* What each segment says of the other direction, from the middle of the TCP header. */
struct tcp_progress {
	__be32 acknowledged;
	__u8 offset; /* of the data; the upper four bits, in words */
	__u8 flags;
	__be16 window;
};

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

#define ICMP_ECHO_REPLY 0
#define ICMP_ECHO_REQUEST 8
#define ICMPV6_ECHO_REQUEST 128
#define ICMPV6_ECHO_REPLY 129

#define ICMP_UNREACHABLE 3
#define ICMP_TOO_BIG 4 /* a code of it: a fragment is needed */
#define ICMPV6_UNREACHABLE 1

#define ICMP_REDIRECT 5
#define ICMPV6_REDIRECT 137

/* Where options begin in an ICMPv6 redirect (RFC 4861, 4.5), counted from its type. */
#define ICMPV6_REDIRECT_OPTIONS 40
#define OPTION_TARGET_LINK_LAYER 2
#define OPTION_REDIRECTED 4

/* The start of an option of neighbour discovery. */
struct nd_option {
	__u8 type;
	__u8 length; /* in units of eight bytes, all of the option */
};

static inline bool icmp_is_redirect(bool v4, __u8 type)
{
	return type == (v4 ? ICMP_REDIRECT : ICMPV6_REDIRECT);
}

/*
 * Messages that quote a packet. RFC 792: unreachable, source quench, redirect, time exceeded,
 * parameter problem.
 */
static inline bool icmp_is_error(__u8 type)
{
	return type == 3 || type == 4 || type == ICMP_REDIRECT || type == 11 || type == 12;
}

/* The same. RFC 4443, section 2.1: error messages have a type below 128. */
static inline bool icmpv6_is_error(__u8 type)
{
	return type < 128 || type == ICMPV6_REDIRECT;
}

static inline bool has_ports(__u8 protocol)
{
	return protocol == PROTO_TCP || protocol == PROTO_UDP || protocol == PROTO_SCTP;
}

static inline bool ipv6_is_extension(__u8 next_header)
{
	return next_header == IPV6_HOP_BY_HOP || next_header == IPV6_ROUTING ||
	       next_header == IPV6_FRAGMENT || next_header == IPV6_DESTINATION ||
	       next_header == IPV6_AUTHENTICATION;
}

static inline bool is_echo_request(bool v4, __u8 type)
{
	return type == (v4 ? ICMP_ECHO_REQUEST : ICMPV6_ECHO_REQUEST);
}

static inline bool tcp_ends(__u8 tcp_flags)
{
	return tcp_flags & (TCP_FIN | TCP_RST);
}

/*
 * True if a packet opens a TCP connection. As in netfilter, a SYN that also says FIN or RST opens
 * none: no TCP sends it, and a listener would not answer.
 */
static inline bool tcp_opens(__u8 tcp_flags)
{
	return (tcp_flags & (TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST)) == TCP_SYN;
}

/* True if a packet opens a TCP connection and has come by no interface. */
static inline bool opened_here(const struct __sk_buff *skb, __u8 tcp_flags)
{
	return tcp_opens(tcp_flags) && !skb->ingress_ifindex;
}
