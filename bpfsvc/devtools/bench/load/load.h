/* What the client and the server of the load tool share. */
#ifndef LOAD_H
#define LOAD_H

#define _GNU_SOURCE

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>

#define MESSAGE 64	  /* bytes of a request and of its answer */
#define BLOCK (64 * 1024) /* bytes of one write in bulk */
#define EVENTS 64	  /* read at once */

#define NS_PER_MS 1000000ULL
#define NS_PER_SECOND 1000000000ULL

/* The first byte of a connection says what the server does with all of it. */
#define ECHO 'e' /* send everything back */
#define SINK 's' /* read everything, and close when the client has */

/* An address and port of either family. */
struct socket_address {
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	};
	socklen_t size;
};

void serve(unsigned int port);
void take_orders(void);

/* Print the error as JSON on standard output, and exit. */
void fail(const char *what, int error) __attribute__((noreturn));

/* Add a descriptor to the epoll instance `watcher`, which returns `about` on `events`. */
void watch(int watcher, int descriptor, uint32_t events, void *about);

/* Bind to a port of all addresses; return 0 or a negative errno. */
int take_port(int descriptor, int family, unsigned int port);

/* Return the time of a clock, in nanoseconds. */
static inline uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * NS_PER_SECOND + now.tv_nsec;
}

#endif
