/*
 * The decision by itself, for whoever wants to know what would become of a client: nothing is noted
 * and nothing is counted.
 */

#define CLIENT_UNKNOWN 3 /* to be found out */

/* What is asked, as the data of a test packet; the choice is written where it stands empty. */
struct question {
	__u8 ethernet[ETH_HLEN];
	__u8 zero[2];
	struct frontend_key frontend;
	struct client client;
	struct choice choice;
};

static inline int decide_question(struct __sk_buff *skb)
{
	struct settings *settings = settings_get();
	struct question question;
	int verdict;

	if (!settings || bpf_skb_load_bytes(skb, 0, &question, sizeof(question)))
		return -1;
	if (question.client.class == CLIENT_UNKNOWN)
		question.client.class =
			client_class(settings, skb->ifindex, &question.client.address);
	loopback_normalize(&question.frontend.address);
	verdict = choose_backend(&question.frontend, &question.client, &question.choice);
	if (bpf_skb_store_bytes(skb, 0, &question, sizeof(question), 0))
		return -1;
	return verdict;
}
