/*
 * Interfaces that XDP takes packets from and sends them by. The driver names the one by which a
 * packet came, and that may be a port of the bond that routes, and all else, know.
 */

#define MAX_UPLINKS 256

struct uplink {
	__u32 ifindex; /* as routes know it: that of the bond, for one of its ports */
	__be16 mac[3]; /* what is sent to another is not ours to route */
	__u8 redirect; /* XDP_TX would lose packets; what is redirected there arrives */
	__u8 takes;    /* its driver sends what is redirected to it by another */
};

MAP("hash", __u32, struct uplink, uplinks, MAX_UPLINKS, BPF_F_NO_PREALLOC);
