/* Source ports of new flows, in turn. */
#include "client.h"

#include <errno.h>
#include <stdint.h>

/* Since Linux 6.3; Debian 12 has older headers. */
#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

/*
 * A port comes again when all others have had their turn. What was sent from it before is forgotten
 * by then wherever flows are remembered, so that every operation is a new flow; the kernel would
 * choose among half as many, at random. Of TCP every port waits a second or two in TIME_WAIT, and
 * at full rate most of them do: the kernel's search for a free one would cost the faster of two
 * ways more. NodePorts are left out, for a node may be the client.
 */
#define FIRST_PORT 2000
#define FIRST_NODE_PORT 30000
#define AFTER_NODE_PORTS 32768
#define AFTER_PORTS 65000
#define PORT_TRIES 64

/* net.ipv4.ip_local_port_range, as it is by default. */
#define FIRST_LOCAL_PORT 32768
#define LAST_LOCAL_PORT 60999

static unsigned int next_port(int kind)
{
	static unsigned int port;

	/* Not where another client in this namespace began. */
	if (kind == SOCK_STREAM && (port < FIRST_LOCAL_PORT || port >= LAST_LOCAL_PORT))
		port = FIRST_LOCAL_PORT +
		       read_clock(CLOCK_MONOTONIC) % (LAST_LOCAL_PORT - FIRST_LOCAL_PORT);
	else if (!port)
		port = FIRST_PORT + read_clock(CLOCK_MONOTONIC) % (FIRST_NODE_PORT - FIRST_PORT);
	if (++port == FIRST_NODE_PORT)
		port = AFTER_NODE_PORTS;
	if (port == AFTER_PORTS)
		port = FIRST_PORT;
	return port;
}

/*
 * Let a socket come from `port`. One of TCP gets it as a range of its own, which leaves it unbound until
 * it connects: few clients bind to a port, and those that do are a case of their own to whoever
 * translates sockets. Such a range must lie within that of the namespace.
 */
static int come_from(int descriptor, int family, int kind, unsigned int port)
{
	uint32_t range = (uint32_t)port << 16 | port;

	if (kind == SOCK_STREAM && port >= FIRST_LOCAL_PORT && port <= LAST_LOCAL_PORT &&
	    !setsockopt(descriptor, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &range, sizeof(range)))
		return 0;
	return take_port(descriptor, family, port);
}

/*
 * All take ports in turn, those of connections that are kept too: one that was ever taken so is not
 * given out by the kernel for a minute.
 */
int begin_flow(struct run *run, struct client *client, int kind)
{
	int result = 0;

	for (int number = 0; number < PORT_TRIES; number++) {
		result = make_socket(run, client, kind);
		if (result)
			return result;
		result = come_from(client->socket, run->to.any.sa_family, kind, next_port(kind));
		if (!result)
			result = reach(run, client);
		if (!result || result == -EINPROGRESS)
			return result;
		drop(client);
		/* The port is somebody's, or was less than a second ago. */
		if (result != -EADDRINUSE && result != -EADDRNOTAVAIL)
			break;
	}
	return result;
}
