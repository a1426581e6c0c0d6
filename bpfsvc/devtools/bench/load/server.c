/*
 * The server: TCP and UDP, IPv4 and IPv6, on one port of all addresses. It prints `true` when
 * it listens, and for each line of standard input what it has seen since its start.
 */
#include "load.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define BACKLOG 4096
#define BATCH 64 /* datagrams read before other sources are served */

/* A descriptor, and the function to call when it is ready. */
struct source {
	void (*ready)(struct source *);
	int descriptor;
	char task; /* of a connection: ECHO or SINK, 0 before its first byte */
};

static int watcher;
static char data[2 * BLOCK];

static struct {
	uint64_t connections;
	uint64_t messages; /* on connections, MESSAGE bytes each */
	uint64_t datagrams;
	uint64_t bytes; /* in bulk */
	uint64_t echoed;
} seen;

static void add_source(int descriptor, void (*ready)(struct source *))
{
	struct source *made = calloc(1, sizeof(*made));

	if (!made)
		fail("memory", ENOMEM);
	made->ready = ready;
	made->descriptor = descriptor;
	watch(watcher, descriptor, EPOLLIN, made);
}

static void drop(struct source *source)
{
	close(source->descriptor);
	free(source);
}

static void connection_ready(struct source *source)
{
	ssize_t length = recv(source->descriptor, data, sizeof(data), 0);

	if (length < 0 && errno == EAGAIN)
		return;
	if (length <= 0) {
		drop(source);
		return;
	}
	if (!source->task)
		source->task = data[0];
	if (source->task == SINK) {
		seen.bytes += length;
		return;
	}
	/* One message is under way at a time, so that there is always room for its answer. */
	if (send(source->descriptor, data, length, MSG_NOSIGNAL) != length) {
		drop(source);
		return;
	}
	seen.echoed += length;
	seen.messages = seen.echoed / MESSAGE;
}

static void listener_ready(struct source *source)
{
	int made = accept4(source->descriptor, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	/* The client may have closed it before it was accepted. */
	if (made < 0)
		return;
	seen.connections++;
	add_source(made, connection_ready);
}

static void datagrams_ready(struct source *source)
{
	for (int number = 0; number < BATCH; number++) {
		struct sockaddr_storage peer;
		socklen_t size = sizeof(peer);
		ssize_t length = recvfrom(source->descriptor, data, sizeof(data), 0,
					  (struct sockaddr *)&peer, &size);

		if (length < 0)
			return;
		seen.datagrams++;
		/* If it cannot be answered, the client counts it as lost. */
		sendto(source->descriptor, data, length, 0, (struct sockaddr *)&peer, size);
	}
}

static void orders_ready(struct source *source)
{
	if (read(source->descriptor, data, sizeof(data)) <= 0)
		exit(0);
	printf("{\"connections\": %" PRIu64 ", \"messages\": %" PRIu64 ", \"datagrams\": %" PRIu64
	       ", \"bytes\": %" PRIu64 "}\n",
	       seen.connections, seen.messages, seen.datagrams, seen.bytes);
	fflush(stdout);
}

static void open_port(int family, int kind, unsigned int port)
{
	int made = socket(family, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int result, yes = 1;

	if (made < 0 && errno == EAFNOSUPPORT)
		return;
	if (made < 0)
		fail("socket", errno);
	/* Each family has its own socket: one for both would make IPv4 take another path. */
	if (family == AF_INET6)
		setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof(yes));
	result = take_port(made, family, port);
	if (!result && kind == SOCK_STREAM && listen(made, BACKLOG) < 0)
		result = -errno;
	if (result)
		fail("listen on the port that was asked for", -result);
	add_source(made, kind == SOCK_STREAM ? listener_ready : datagrams_ready);
}

void serve(unsigned int port)
{
	struct epoll_event events[EVENTS];

	watcher = epoll_create1(EPOLL_CLOEXEC);
	open_port(AF_INET, SOCK_STREAM, port);
	open_port(AF_INET, SOCK_DGRAM, port);
	open_port(AF_INET6, SOCK_STREAM, port);
	open_port(AF_INET6, SOCK_DGRAM, port);
	add_source(STDIN_FILENO, orders_ready);
	puts("true");
	fflush(stdout);
	for (;;) {
		int count = epoll_wait(watcher, events, EVENTS, -1);

		for (int number = 0; number < count; number++) {
			struct source *source = events[number].data.ptr;

			source->ready(source);
		}
	}
}
