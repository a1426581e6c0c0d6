/* What a client does by UDP. Datagrams are numbered, so that a late answer is not a later one's. */
#include "client.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>

#define SETUP_MS 20

struct numbered {
	uint64_t number;
	char rest[MESSAGE - sizeof(uint64_t)];
};

static struct numbered next_message(struct run *run, struct client *client)
{
	client->number = ++run->numbers;
	return (struct numbered){.number = client->number};
}

/* datagrams: on one unconnected socket; the first datagram is not counted */

static int datagrams_begin(struct run *run, struct client *client)
{
	struct numbered message = next_message(run, client);
	ssize_t sent =
		sendto(client->socket, &message, sizeof(message), 0, &run->to.any, run->to.size);

	return sent < 0 ? -errno : PENDING;
}

/* An unconnected socket receives from any address, so the source has to be checked. */
static bool is_asked(const struct run *run, const struct socket_address *from)
{
	/* The port is at the same place in both families. */
	if (from->v4.sin_port != run->to.v4.sin_port)
		return false;
	if (run->to.any.sa_family == AF_INET)
		return from->v4.sin_addr.s_addr == run->to.v4.sin_addr.s_addr;
	return IN6_ARE_ADDR_EQUAL(&from->v6.sin6_addr, &run->to.v6.sin6_addr);
}

static int datagrams_ready(struct run *run, struct client *client)
{
	struct socket_address from = {.size = sizeof(from.v6)};
	struct numbered message;
	ssize_t length =
		recvfrom(client->socket, &message, sizeof(message), 0, &from.any, &from.size);

	if (length < 0)
		return errno == EAGAIN ? PENDING : -errno;
	if (length != sizeof(message) || message.number != client->number || !is_asked(run, &from))
		return PENDING;
	return ANSWERED;
}

static int datagrams_prepare(struct run *run, struct client *client)
{
	int result = make_socket(run, client, SOCK_DGRAM);

	if (!result)
		result = datagrams_begin(run, client);
	if (!result && !await(client, POLLIN, SETUP_MS))
		result = datagrams_ready(run, client);
	if (result < 0)
		return result;
	watch(run->watcher, client->socket, EPOLLIN, client);
	return 0;
}

/* questions: a connected socket, from a source port of its own, for each datagram */

static int questions_begin(struct run *run, struct client *client)
{
	struct numbered message = next_message(run, client);
	int result = begin_flow(run, client, SOCK_DGRAM);

	if (result)
		return result;
	if (send(client->socket, &message, sizeof(message), 0) < 0)
		return -errno;
	watch(run->watcher, client->socket, EPOLLIN, client);
	return PENDING;
}

static int questions_ready(struct run *run, struct client *client)
{
	struct numbered message;
	ssize_t length = recv(client->socket, &message, sizeof(message), 0);

	(void)run;
	if (length < 0)
		return errno == EAGAIN ? PENDING : -errno;
	if (length != sizeof(message) || message.number != client->number)
		return PENDING;
	drop(client);
	return ANSWERED;
}

const struct kind datagrams_kind = {.name = "datagrams",
				    .prepare = datagrams_prepare,
				    .begin = datagrams_begin,
				    .ready = datagrams_ready,
				    .unsure = true};

const struct kind questions_kind = {.name = "questions",
				    .begin = questions_begin,
				    .ready = questions_ready,
				    .fresh_socket = true,
				    .unsure = true};
