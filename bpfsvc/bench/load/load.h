/* What both roles of the load tool share. */
#ifndef LOAD_H
#define LOAD_H

#define _GNU_SOURCE

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>

#define MESSAGE 64	  /* bytes of a question and of its answer */
#define BLOCK (64 * 1024) /* bytes of one write in bulk */
#define EVENTS 64	  /* that are taken at once */

#define NS_PER_MS 1000000ULL
#define NS_PER_SECOND 1000000000ULL

/* The first byte of a connection tells the server what to do with all of it. */
#define ECHO 'e' /* send everything back */
#define SINK 's' /* read everything, and close when the other end has */

/* An address and port of either family. */
struct place {
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	};
	socklen_t size;
};

void serve(unsigned int port);
void take_orders(void);

/* Say on standard output, as JSON, what is wrong, and end. */
void fail(const char *what, int error) __attribute__((noreturn));

/* Have the epoll instance `watcher` tell `about` when something of `events` happens. */
void watch(int watcher, int descriptor, uint32_t events, void *about);

/* Bind to a port of all addresses; 0 or a negative errno. */
int take_port(int descriptor, int family, unsigned int port);

/* Of a clock, in nanoseconds. */
static inline uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * NS_PER_SECOND + now.tv_nsec;
}

#endif
