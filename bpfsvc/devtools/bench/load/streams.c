/* What a client does by TCP. */
#include "client.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>

#define SETUP_MS 2500 /* for a connection before the run: one lost SYN and its successor */
#define WRITES 16     /* blocks before other clients are served */

static char block[BLOCK] = {SINK};

static int send_message(struct client *client)
{
	const char message[MESSAGE] = {ECHO};
	ssize_t sent = send(client->socket, message, sizeof(message), MSG_NOSIGNAL);

	if (sent < 0)
		return errno == EAGAIN ? PENDING : -errno;
	client->sent = true;
	client->received = 0;
	return sent == sizeof(message) ? PENDING : -ENOBUFS;
}

static int receive_message(struct client *client)
{
	char message[MESSAGE];
	ssize_t length = recv(client->socket, message, sizeof(message) - client->received, 0);

	if (length < 0)
		return errno == EAGAIN ? PENDING : -errno;
	if (!length)
		return -ECONNRESET;
	client->received += length;
	return client->received == sizeof(message) ? ANSWERED : PENDING;
}

/* connect: a whole connection for each message, which the client closes */

static int connect_begin(struct run *run, struct client *client)
{
	int result;

	client->sent = false;
	result = begin_flow(run, client, SOCK_STREAM);
	if (result && result != -EINPROGRESS)
		return result;
	watch(run->watcher, client->socket, EPOLLIN | EPOLLOUT | EPOLLET, client);
	return PENDING;
}

static int connect_ready(struct run *run, struct client *client)
{
	int result;

	(void)run;
	if (!client->sent)
		return send_message(client);
	result = receive_message(client);
	/* This is part of the time measured. */
	if (result == ANSWERED)
		drop(client);
	return result;
}

/* request: messages on one connection; the first message is not counted */

static int establish(struct run *run, struct client *client)
{
	socklen_t size = sizeof(int);
	int error = 0, result = begin_flow(run, client, SOCK_STREAM);

	if (result == -EINPROGRESS)
		result = await(client, POLLOUT, SETUP_MS);
	if (result)
		return result;
	getsockopt(client->socket, SOL_SOCKET, SO_ERROR, &error, &size);
	return -error;
}

static int request_prepare(struct run *run, struct client *client)
{
	int result = establish(run, client);

	if (!result)
		result = send_message(client);
	while (result == PENDING) {
		result = await(client, POLLIN, SETUP_MS);
		if (!result)
			result = receive_message(client);
	}
	if (result < 0)
		return result;
	watch(run->watcher, client->socket, EPOLLIN, client);
	return 0;
}

static int request_begin(struct run *run, struct client *client)
{
	(void)run;
	return send_message(client);
}

static int request_ready(struct run *run, struct client *client)
{
	(void)run;
	return receive_message(client);
}

/* bulk: blocks on one connection; it ends when the server has read them all */

static int bulk_prepare(struct run *run, struct client *client)
{
	int result = establish(run, client);

	if (!result)
		watch(run->watcher, client->socket, EPOLLIN | EPOLLOUT, client);
	return result;
}

static int bulk_close(struct run *run, struct client *client)
{
	struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = client};

	client->sent = true;
	epoll_ctl(run->watcher, EPOLL_CTL_MOD, client->socket, &wanted);
	return shutdown(client->socket, SHUT_WR) < 0 ? -errno : PENDING;
}

static int bulk_ready(struct run *run, struct client *client)
{
	ssize_t length;
	char end;

	for (int number = 0; number < WRITES && !client->sent; number++) {
		if (read_clock(CLOCK_MONOTONIC) >= run->deadline)
			return bulk_close(run, client);
		length = send(client->socket, block, sizeof(block), MSG_NOSIGNAL);
		if (length < 0)
			return errno == EAGAIN ? PENDING : -errno;
		run->bytes += length;
	}
	if (!client->sent)
		return PENDING;
	length = recv(client->socket, &end, sizeof(end), 0);
	if (length < 0)
		return errno == EAGAIN ? PENDING : -errno;
	return length ? -EPROTO : FINISHED;
}

const struct kind connect_kind = {
	.name = "connect", .begin = connect_begin, .ready = connect_ready, .fresh_socket = true};

const struct kind request_kind = {.name = "request",
				  .prepare = request_prepare,
				  .begin = request_begin,
				  .ready = request_ready,
				  .stays = true};

const struct kind bulk_kind = {.name = "bulk", .prepare = bulk_prepare, .ready = bulk_ready};
