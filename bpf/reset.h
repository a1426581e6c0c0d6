/*
 * Refusing a TCP connection by a reset. A client in connect() takes an ICMPv6 error for a hint only,
 * when the error comes back on the same processor before connect() has let go of the socket, as it
 * does from the other end of a veth pair; it then tries again, a second later. It believes a reset.
 */

struct tcp_start {
	struct ports ports;
	__be32 sequence;
	__be32 acknowledged;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__sum16 checksum;
	__be16 urgent;
};

#define TCP_OPTION_BYTES 40

#define REJECT_TTL 64 /* of every kind of refusal */

/* What the reset leaves out of the packet, as far as there may be options. */
static inline int sum_rest(struct __sk_buff *skb, __u32 at, __u32 size, __s64 *sum)
{
	__u32 only = 0;
	struct quote *rest = quotes.lookup(&only);
	__u64 bytes = size & 0x3c;

	if (!rest || size > TCP_OPTION_BYTES || size & 3)
		return -1;
	/* Linux 6.1 learns from "less than 4" what it does not from "not 0", and of this register only. */
	asm volatile("" : "+r"(bytes));
	if (bytes < 4)
		return 0;
	if (bpf_skb_load_bytes(skb, at, rest->bytes, bytes))
		return -1;
	*sum = bpf_csum_diff((__be32 *)rest->bytes, bytes, 0, 0, *sum);
	return 0;
}

/*
 * Make the answer of a SYN (RFC 9293, 3.10.7.1). Ports and addresses change places, which no sum
 * notices. The checksum is brought forward by the helper, for it may not be computed yet. Negative if
 * the packet is one of those that this is not for; positive if it is spoilt.
 */
static inline int make_reset(struct __sk_buff *skb, const struct packet *packet)
{
	__u32 l4 = packet->l4, checksum = l4 + TCP_CHECKSUM_OFFSET, size;
	struct address ends[2] = {packet->flow.destination, packet->flow.source};
	struct tcp_start before, after = {};
	struct ipv6_start ip;
	__sum16 checked;
	__s64 sum;

	if (transport_size(skb, packet, &size) || size < sizeof(before) ||
	    bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)) ||
	    bpf_skb_load_bytes(skb, l4, &before, sizeof(before)))
		return -1;
	ip.version_and_flow = bpf_htonl(0x60000000);
	ip.payload_length = bpf_htons(l4 - packet->l3 - IPV6_HEADER_LENGTH + sizeof(after));
	ip.hop_limit = REJECT_TTL;
	checked = before.checksum;
	before.checksum = 0;
	after.ports.source = before.ports.destination;
	after.ports.destination = before.ports.source;
	/* The SYN itself, and what data it may bring. */
	after.acknowledged =
		bpf_htonl(bpf_ntohl(before.sequence) + 1 + size - (before.offset >> 4) * 4);
	after.offset = TCP_HEADER_LENGTH / 4 << 4;
	after.flags = TCP_RST | TCP_ACK;
	sum = bpf_csum_diff((__be32 *)&before, sizeof(before), (__be32 *)&after, sizeof(after), 0);
	if (sum_rest(skb, l4 + sizeof(before), size - sizeof(before), &sum))
		return -1;
	after.checksum = checked;
	return bpf_skb_store_bytes(skb, l4, &after, sizeof(after), 0) ||
	       bpf_l4_csum_replace(skb, checksum, 0, sum, 0) ||
	       bpf_l4_csum_replace(skb, checksum, bpf_htons(size), bpf_htons(sizeof(after)),
				   BPF_F_PSEUDO_HDR | 2) ||
	       bpf_skb_change_tail(skb, l4 + sizeof(after), 0) ||
	       bpf_skb_store_bytes(skb, packet->l3, &ip, sizeof(ip), 0) ||
	       bpf_skb_store_bytes(skb, packet->l3 + IPV6_SOURCE_OFFSET, ends, sizeof(ends), 0);
}
