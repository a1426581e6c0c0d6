/*
 * A load on the network, and its server.
 *
 *	load server CORE PORT
 *	load client CORE
 *
 * Both run on one core (-1: on any) with one thread, and end with their standard input; see server.c and
 * client.c for what they read there. Every line that they print is JSON; {"error": ...} says what
 * failed and why.
 */
#include "load.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

void fail(const char *what, int error)
{
	printf("{\"error\": \"%s: %s\"}\n", what, strerror(error));
	fflush(stdout);
	exit(1);
}

void watch(int watcher, int descriptor, uint32_t events, void *about)
{
	struct epoll_event wanted = {.events = events, .data.ptr = about};

	if (epoll_ctl(watcher, EPOLL_CTL_ADD, descriptor, &wanted) < 0)
		fail("epoll", errno);
}

int take_port(int descriptor, int family, unsigned int port)
{
	struct socket_address here = {.v4 = {.sin_family = family, .sin_port = htons(port)}};
	int yes = 1;

	here.size = sizeof(here.v4);
	if (family == AF_INET6) {
		here = (struct socket_address){
			.v6 = {.sin6_family = family, .sin6_port = htons(port)}};
		here.size = sizeof(here.v6);
	}
	/* Otherwise a port with a connection in TIME_WAIT could not be bound. */
	setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	return bind(descriptor, &here.any, here.size) < 0 ? -errno : 0;
}

static void pin(int core)
{
	cpu_set_t set;

	if (core < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (sched_setaffinity(0, sizeof(set), &set) < 0)
		fail("run on the core that was asked for", errno);
}

int main(int count, char **words)
{
	if (count == 4 && !strcmp(words[1], "server")) {
		pin(atoi(words[2]));
		serve(atoi(words[3]));
	} else if (count == 3 && !strcmp(words[1], "client")) {
		pin(atoi(words[2]));
		take_orders();
	} else {
		fail("load server CORE PORT, or load client CORE", EINVAL);
	}
	return 0;
}
