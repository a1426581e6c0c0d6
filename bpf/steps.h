/*
 * What few packets need is not part of the programs that every packet runs: they jump there, with
 * what they know lying in `packets`. The programs of a build stand in its own `steps`.
 */

#define STEP_FIRST 0   /* a packet of no known connection, or a SYN on a closed one */
#define STEP_CAREFUL 1 /* a packet of a connection whose entries need more than a look */
#define STEP_ICMP 2    /* an ICMP error */
#define STEP_UNUSUAL 3 /* fragments, IPv6 extension headers */
#define STEP_REWRITE 4 /* what is rewritten in unusual ways */
#define STEP_OPEN 5    /* a first packet whose backend is chosen */
#define STEP_REJECT 6
#define STEP_MASQUERADE 7 /* the first packet of a masqueraded connection leaves */
#define STEP_SHORTCUT 8	  /* a packet of other steps takes the fast path */
#define STEPS 9

MAP("prog", __u32, __u32, steps, STEPS, 0);

/* Jump to a step. If it is not there, nothing that it might have translated may pass. */
static inline int step(struct __sk_buff *skb, __u32 number)
{
	steps.call(skb, number);
	COUNT(dropped__step_missing);
	return TC_ACT_SHOT;
}
