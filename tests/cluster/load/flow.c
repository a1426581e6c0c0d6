/*
 * The steps of a flow: a socket, connected, a request, its answer; then the end, or a rest.
 *
 * The answer to HTTP's GET /hostname is complete when as many bytes as Content-Length says have
 * arrived; a datagram is its answer.
 */
#include "load.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static const char held_request[] = "GET /hostname HTTP/1.1\r\nHost: load\r\n\r\n";
static const char new_request[] =
	"GET /hostname HTTP/1.1\r\nHost: load\r\nConnection: close\r\n\r\n";
static const char datagram[] = "hostname";

static uint64_t limit(const struct job *job)
{
	return job->udp ? UDP_LIMIT : LIMIT;
}

static void leave(struct flow *flow)
{
	if (flow->socket >= 0)
		close(flow->socket);
	flow->socket = -1;
	flow->state = IDLE;
	flow->opened = false;
	flow->due = flow->job->hold && !released ? now_ns() + PAUSE : 0;
}

static void fail(struct flow *flow, const char *reason)
{
	count_failure(flow, flow->state == CONNECTING ? "connect" : "request", reason);
	/* A held socket of datagrams has nothing that breaks. */
	if (flow->job->hold && flow->job->udp && flow->socket >= 0) {
		flow->state = RESTING;
		flow->due = now_ns() + PAUSE;
		return;
	}
	leave(flow);
}

static void fail_by(struct flow *flow, int error)
{
	const char *name = strerrorname_np(error);

	fail(flow, name ? name : "unknown error");
}

static void ask(struct flow *flow)
{
	const char *text = flow->job->udp ? datagram : flow->job->hold ? held_request : new_request;
	size_t length = strlen(text);
	ssize_t sent = send(flow->socket, text, length, MSG_NOSIGNAL);

	flow->state = WAITING;
	flow->received = 0;
	if (sent < 0)
		fail_by(flow, errno);
	else if ((size_t)sent < length)
		fail(flow, "short write");
}

/*
 * Give a new UDP flow the port that has not been used for longest. The kernel's choice would soon
 * be the port of an older flow, which proxies take for the same flow for a minute or two.
 */
static bool bind_in_turn(struct flow *flow)
{
	struct job *job = flow->job;
	struct sockaddr_in6 own = {.sin6_family = job->to.any.sa_family};

	for (unsigned int tried = 0; tried < PORTS; tried++) {
		own.sin6_port =
			htons(FIRST_PORT + job->port++ % PORTS); /* where IPv4 has it, too */
		if (!bind(flow->socket, (struct sockaddr *)&own, job->size))
			return true;
	}
	return false;
}

static void open_flow(struct flow *flow, uint64_t now)
{
	struct job *job = flow->job;
	int kind = (job->udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK | SOCK_CLOEXEC;
	struct epoll_event wanted = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = flow};

	flow->state = CONNECTING;
	flow->began = now;
	flow->due = now + limit(flow->job);
	flow->backend[0] = 0;
	flow->socket = socket(job->to.any.sa_family, kind, 0);
	if (flow->socket < 0 || (job->udp && !job->hold && !bind_in_turn(flow)))
		fail_by(flow, errno);
	else if (connect(flow->socket, &job->to.any, job->size) < 0 && errno != EINPROGRESS)
		fail_by(flow, errno);
	else if (epoll_ctl(watcher, EPOLL_CTL_ADD, flow->socket, &wanted) < 0)
		fail_by(flow, errno);
	else if (job->udp)
		ask(flow);
}

/* Return the body if the answer is complete, NULL if more is to come; "" if it is no good. */
static const char *body(const struct flow *flow)
{
	const char *head = flow->answer, *end, *length;

	if (flow->job->udp)
		return head;
	end = strstr(head, "\r\n\r\n");
	if (!end)
		return NULL;
	length = strcasestr(head, "\r\nContent-Length:");
	if (strncmp(head + strcspn(head, " "), " 200 ", 5) || !length || length > end)
		return "";
	end += 4;
	return strlen(end) >= strtoul(length + 17, NULL, 10) ? end : NULL;
}

static void take_answer(struct flow *flow, const char *text)
{
	size_t length = strcspn(text, "\r\n");
	uint64_t now = now_ns();

	if (!length || length >= NAME) {
		fail(flow, "wrong answer");
		return;
	}
	memcpy(flow->backend, text, length);
	flow->backend[length] = 0;
	flow->opened = true;
	count_answer(flow, now - flow->began);
	if (flow->job->hold) {
		flow->state = RESTING;
		flow->due = (flow->began + flow->job->pause > now ? flow->began : now) +
			    flow->job->pause;
	} else {
		leave(flow);
	}
}

static void receive(struct flow *flow)
{
	ssize_t length =
		recv(flow->socket, flow->answer + flow->received, ANSWER - flow->received, 0);
	const char *text;

	if (length < 0) {
		if (errno != EAGAIN)
			fail_by(flow, errno);
		return;
	}
	if (!length) {
		fail(flow, "closed");
		return;
	}
	/* The late answer to a datagram that was given up. */
	if (flow->state == RESTING && flow->job->udp)
		return;
	flow->received += length;
	flow->answer[flow->received] = 0;
	text = body(flow);
	if (text)
		take_answer(flow, text);
	else if (flow->received == ANSWER)
		fail(flow, "wrong answer");
}

void look(struct flow *flow)
{
	socklen_t size = sizeof(int);
	int error = 0;

	if (flow->socket < 0)
		return;
	if (flow->state == CONNECTING) {
		getsockopt(flow->socket, SOL_SOCKET, SO_ERROR, &error, &size);
		if (error)
			fail_by(flow, error);
		else
			ask(flow);
		return;
	}
	receive(flow);
}

static struct flow *find_free(struct job *job)
{
	for (unsigned int at = 0; at < job->places; at++)
		if (job->flows[at].state == IDLE)
			return &job->flows[at];
	return NULL;
}

/* New flows at their times, however long answers take. */
static void begin_new(struct job *job, uint64_t now)
{
	if (job->next + BEHIND < now)
		job->next = now - BEHIND;
	for (; job->next <= now; job->next += SECOND / job->number) {
		struct flow *flow = find_free(job);

		if (!flow)
			return;
		open_flow(flow, now);
	}
}

static void step(struct flow *flow, uint64_t now, bool last)
{
	struct pollfd ready = {
		.fd = flow->socket,
		.events = flow->state == CONNECTING ? POLLOUT : POLLIN,
	};

	switch (flow->state) {
	case IDLE:
		if (released)
			flow->due = 0;
		else if (!last)
			open_flow(flow, now);
		break;
	case RESTING:
		if (last)
			break;
		if (released) {
			leave(flow);
			break;
		}
		flow->began = now;
		flow->due = now + limit(flow->job);
		ask(flow);
		break;
	default:
		/* Unless it happened while this process did not run. */
		if (poll(&ready, 1, 0) > 0)
			flow->due = now + limit(flow->job);
		else
			fail(flow, "timeout");
	}
}

uint64_t advance(struct job *job, uint64_t now, bool last)
{
	uint64_t next = UINT64_MAX;

	if (!job->hold && !last) {
		begin_new(job, now);
		next = job->next;
	}
	for (unsigned int at = 0; at < job->places; at++) {
		struct flow *flow = &job->flows[at];

		if (flow->due && flow->due <= now)
			step(flow, now, last);
		if (flow->due && flow->due < next && !(last && flow->due <= now))
			next = flow->due;
	}
	return next;
}

bool busy(const struct job *job)
{
	for (unsigned int at = 0; at < job->places; at++)
		if (job->flows[at].state == CONNECTING || job->flows[at].state == WAITING)
			return true;
	return false;
}

void prepare(struct job *job, uint64_t now)
{
	/* Of new flows, so many are under way when none of them gets an answer. */
	job->places = job->hold ? job->number : job->number * (LIMIT + BEHIND) / SECOND + 1;
	job->flows = calloc(job->places, sizeof(struct flow));
	job->next = now;
	job->port = now / MS; /* not where the load before began */
	for (unsigned int at = 0; job->flows && at < job->places; at++) {
		job->flows[at].job = job;
		job->flows[at].socket = -1;
		if (job->hold)
			job->flows[at].due = now + 1 + at * (job->pause / job->number);
	}
	if (!job->flows)
		exit(1);
}
