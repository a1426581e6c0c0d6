/*
 * Steps: programs for what few packets need, reached by tail calls. They find the packet in the map
 * `packets`. Each build has a map `steps` of its own.
 */
#pragma once

#include "lib/map.h"
#include "lib/wire.h"
#include "maps/counters.h"

/* By their place in `steps`; the program of STEP_X is `step_x`. */
enum step {
	STEP_FIRST,	  /* a packet of no known connection, or a SYN that opens one anew */
	STEP_ESTABLISHED, /* a packet of a connection whose entries need more than an update */
	STEP_ICMP,	  /* an ICMP error */
	STEP_PARSE_SLOW,  /* fragments, IPv6 extension headers */
	STEP_REWRITE,	  /* fragments and SCTP, once it is known what they become */
	STEP_OPEN,	  /* a first packet that has a backend */
	STEP_REJECT,	  /* a first packet that is refused */
	STEP_MASQUERADE,  /* the first packet of a masqueraded connection leaves */
	STEP_FAST_PATH,	  /* a packet of other steps takes the fast path */
	STEP_ECHO,	  /* an echo request that is answered */
	STEP_SCHEDULE, /* a first packet that needs a comparison of loads, or a decision about overflow */
	STEP_ATTEMPT,	   /* before STEP_ESTABLISHED, until the connect result is recorded */
	STEP_TRIAL,	   /* before STEP_OPEN, while a backend is on trial */
	STEP_UNTRANSLATED, /* after STEP_OPEN, a first packet from outside that stays as it is */
	STEPS,
};

MAP("prog", __u32, __u32, steps, STEPS, 0);

/*
 * Jump to a step with a packet of a Service. If the step is missing, the packet is dropped: it
 * might leave untranslated. (path/step_missing.h is for packets that may be of no Service.)
 */
static inline int tail_call(struct __sk_buff *skb, __u32 number)
{
	steps.call(skb, number);
	COUNT(dropped__step_missing);
	return TC_ACT_SHOT;
}
