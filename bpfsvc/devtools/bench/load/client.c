/*
 * The client. Each line of standard input is an order, [kind, address, port, clients,
 * milliseconds] as JSON; each is answered with one line when it is done.
 *
 * Operations begin until the time is over; the clock stops when the last has ended. What has not
 * after some grace is an error, as is a datagram without an answer for LOST. After an error a
 * client pauses that long, so that errors do not become the load. If the very first operation is refused
 * there is nothing to measure, and that is the answer; so too if source ports are lacking.
 */
#include "client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define CLIENTS 512
#define LOST (20 * NS_PER_MS)
/* A processor may stall for so long; a SYN that was lost comes again after a second. */
#define GRACE (900 * NS_PER_MS)
#define BULK_GRACE (2 * NS_PER_SECOND) /* megabytes may be on their way */
#define TICK_MS 5

static const struct kind *const kinds[] = {&connect_kind, &request_kind, &bulk_kind,
					   &datagrams_kind, &questions_kind};
static struct client clients[CLIENTS];

/* The connections that the last order has left; count 0: none. */
static struct {
	const struct kind *kind;
	struct socket_address to;
	unsigned int count;
} kept;

int make_socket(struct run *run, struct client *client, int kind)
{
	client->socket = socket(run->to.any.sa_family, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	return client->socket < 0 ? -errno : 0;
}

int reach(struct run *run, struct client *client)
{
	return connect(client->socket, &run->to.any, run->to.size) < 0 ? -errno : 0;
}

int await(struct client *client, short events, int ms)
{
	struct pollfd wanted = {.fd = client->socket, .events = events};

	return poll(&wanted, 1, ms) > 0 ? 0 : -ETIMEDOUT;
}

void drop(struct client *client)
{
	if (client->socket >= 0)
		close(client->socket);
	client->socket = -1;
}

static void refuse(struct run *run, struct client *client, int error)
{
	run->errors++;
	client->refused = true;
	if (run->kind->fresh_socket)
		drop(client);
	/* A connection that was to be kept, or nothing has worked yet, or there are no ports. */
	if (!run->operations || (!run->kind->fresh_socket && !run->kind->unsure) ||
	    error == EADDRNOTAVAIL)
		run->failure = error;
}

static void begin(struct run *run, struct client *client, uint64_t now)
{
	int result;

	if (now >= run->deadline) {
		client->finished = true;
		return;
	}
	client->began = now;
	client->refused = false;
	result = run->kind->begin(run, client);
	if (result < 0)
		refuse(run, client, -result);
}

static void look(struct run *run, struct client *client)
{
	int result = run->kind->ready(run, client);

	/* An answer after the client has given up changes nothing. */
	if (result == PENDING || client->finished || client->refused)
		return;
	if (result < 0) {
		refuse(run, client, -result);
		return;
	}
	run->last = read_clock(CLOCK_MONOTONIC);
	if (result == FINISHED) {
		client->finished = true;
		drop(client);
		return;
	}
	histogram_add(&run->histogram, run->last - client->began);
	run->operations++;
	run->bytes += MESSAGE;
	begin(run, client, run->last);
}

/* Clients with an overdue answer begin again. Return true if any client has not finished. */
static bool tick(struct run *run, unsigned int count, uint64_t now)
{
	bool busy = false;

	for (unsigned int number = 0; number < count; number++) {
		struct client *client = &clients[number];
		bool ends = client->refused || run->kind->unsure;

		if (!client->finished && ends && now >= client->began + LOST) {
			run->errors += !client->refused;
			if (run->kind->fresh_socket)
				drop(client);
			begin(run, client, now);
		}
		busy |= !client->finished;
	}
	return busy;
}

static void work(struct run *run, unsigned int count)
{
	uint64_t grace = run->kind->begin ? GRACE : BULK_GRACE;
	uint64_t now, next = 0;
	struct epoll_event events[EVENTS];
	bool busy = true;

	if (run->kind->begin)
		for (unsigned int number = 0; number < count && !run->failure; number++)
			begin(run, &clients[number], read_clock(CLOCK_MONOTONIC));
	while (busy && !run->failure) {
		int ready = epoll_wait(run->watcher, events, EVENTS, TICK_MS);

		for (int number = 0; number < ready && !run->failure; number++)
			look(run, events[number].data.ptr);
		now = read_clock(CLOCK_MONOTONIC);
		if (now < next && now < run->deadline)
			continue;
		next = now + TICK_MS * NS_PER_MS;
		busy = tick(run, count, now) && now < run->deadline + grace;
	}
	for (unsigned int number = 0; number < count; number++)
		run->errors += !clients[number].finished && !clients[number].refused;
}

/* Take the connections of the last order, if they are for the same; else make new ones. */
static void prepare(struct run *run, unsigned int count)
{
	bool again = kept.count == count && kept.kind == run->kind &&
		     !memcmp(&kept.to, &run->to, sizeof(kept.to));
	unsigned int number;

	for (number = 0; number < kept.count && !again; number++)
		drop(&clients[number]);
	kept.count = 0;
	for (number = 0; number < count; number++)
		clients[number] = (struct client){.socket = again ? clients[number].socket : -1};
	for (number = 0; number < count && !again && run->kind->prepare && !run->failure; number++)
		run->failure = -run->kind->prepare(run, &clients[number]);
}

/* Keep the connections for the next order, or close them. */
static void leave(const struct run *run, unsigned int count)
{
	if (run->kind->stays && !run->failure && !run->errors) {
		kept.kind = run->kind;
		kept.to = run->to;
		kept.count = count;
		return;
	}
	for (unsigned int number = 0; number < count; number++)
		drop(&clients[number]);
}

static void measure(struct run *run, unsigned int count, uint64_t duration)
{
	uint64_t cpu;

	prepare(run, count);
	if (!run->failure) {
		cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID);
		run->start = read_clock(CLOCK_MONOTONIC);
		run->deadline = run->start + duration;
		work(run, count);
		run->cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	}
	leave(run, count);
	if (run->last < run->deadline)
		run->last = run->deadline;
	if (!run->kind->begin)
		run->operations = run->bytes / BLOCK;
}

static void report(const struct run *run)
{
	if (run->failure) {
		printf("{\"error\": \"%s\"}\n", strerror(run->failure));
		return;
	}
	printf("{\"operations\": %" PRIu64 ", \"seconds\": %.9f, \"cpu_seconds\": %.9f"
	       ", \"bytes\": %" PRIu64 ", \"errors\": %" PRIu64 ", \"histogram\": ",
	       run->operations, (double)(run->last - run->start) / NS_PER_SECOND,
	       (double)run->cpu / NS_PER_SECOND, run->bytes, run->errors);
	histogram_print(&run->histogram);
	puts("}");
}

static bool read_address(struct socket_address *address, const char *text, unsigned int port)
{
	if (inet_pton(AF_INET, text, &address->v4.sin_addr) == 1) {
		address->v4.sin_family = AF_INET;
		address->v4.sin_port = htons(port);
		address->size = sizeof(address->v4);
		return true;
	}
	address->v6.sin6_family = AF_INET6;
	address->v6.sin6_port = htons(port);
	address->size = sizeof(address->v6);
	return inet_pton(AF_INET6, text, &address->v6.sin6_addr) == 1;
}

static bool read_order(struct run *run, const char *line, unsigned int *count, unsigned int *ms)
{
	char name[16], address[INET6_ADDRSTRLEN];
	unsigned int port;

	if (sscanf(line, "[\"%15[a-z]\", \"%45[0-9a-f:.]\", %u, %u, %u]", name, address, &port,
		   count, ms) != 5)
		return false;
	for (unsigned int number = 0; number < sizeof(kinds) / sizeof(kinds[0]); number++)
		if (!strcmp(kinds[number]->name, name))
			run->kind = kinds[number];
	return run->kind && *count && *count <= CLIENTS && read_address(&run->to, address, port);
}

void take_orders(void)
{
	static struct run run;
	unsigned int count, ms;
	char line[256];
	int watcher = epoll_create1(EPOLL_CLOEXEC);

	if (watcher < 0)
		fail("epoll", errno);
	while (fgets(line, sizeof(line), stdin)) {
		memset(&run, 0, sizeof(run));
		run.watcher = watcher;
		if (read_order(&run, line, &count, &ms))
			measure(&run, count, ms * NS_PER_MS);
		else
			run.failure = EINVAL;
		report(&run);
		fflush(stdout);
	}
}
