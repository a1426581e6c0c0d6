/* Source ports of new flows, in turn. */
#include "client.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>

/* Since Linux 6.3; Debian 12 has older headers. */
#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

/*
 * A port is used again when all others have been used. Its last flow is forgotten by then wherever
 * flows are remembered, so that every operation is a new flow; the kernel would
 * choose among half as many, at random. Of TCP every port waits a second or two in TIME_WAIT, and
 * at full rate most of them do: the kernel's search for a free one would cost the faster of two
 * modes more. NodePorts are left out, because a node may be the client. Who starts runs waits
 * between them until enough ports can be used again (ports.py).
 */
#define FIRST_PORT 2000
#define FIRST_NODE_PORT 30000
#define AFTER_NODE_PORTS 32768
#define AFTER_PORTS 65000
#define PORT_TRIES 64

struct ports {
	unsigned int first;
	unsigned int after; /* the last */
	unsigned int next;
};

/* TCP uses the ports of the namespace: without binding, a socket can come from no other port. */
static struct ports choose_ports(int kind)
{
	struct ports ports = {.first = FIRST_PORT, .after = AFTER_PORTS};
	unsigned int span, first, last;
	FILE *file = NULL;

	if (kind == SOCK_STREAM)
		file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
	if (file) {
		if (fscanf(file, "%u %u", &first, &last) == 2 && first <= last) {
			ports.first = first;
			ports.after = last + 1;
		}
		fclose(file);
	}
	span = (ports.first < FIRST_NODE_PORT ? FIRST_NODE_PORT : ports.after) - ports.first;
	/* Not where another client in this namespace began. */
	ports.next = ports.first + read_clock(CLOCK_MONOTONIC) % span;
	return ports;
}

static unsigned int next_port(int kind)
{
	static struct ports streams, datagrams;
	struct ports *ports = kind == SOCK_STREAM ? &streams : &datagrams;

	if (!ports->after)
		*ports = choose_ports(kind);
	if (++ports->next == FIRST_NODE_PORT && ports->after > AFTER_NODE_PORTS)
		ports->next = AFTER_NODE_PORTS;
	if (ports->next >= ports->after)
		ports->next = ports->first;
	return ports->next;
}

/*
 * Set the source port of a socket. One of TCP gets it as a range of its own, which leaves it unbound
 * until it connects: few clients bind to a port, and socket hooks treat those that do in another
 * way.
 */
static int come_from(int descriptor, int family, int kind, unsigned int port)
{
	uint32_t range = (uint32_t)port << 16 | port;

	if (kind == SOCK_STREAM &&
	    !setsockopt(descriptor, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &range, sizeof(range)))
		return 0;
	return take_port(descriptor, family, port);
}

/*
 * All kinds take ports in turn, kept connections too: the kernel does not give out a port that was
 * ever bound so for a minute.
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
		/* The port is in use, or was less than a second ago. */
		if (result != -EADDRINUSE && result != -EADDRNOTAVAIL)
			break;
	}
	return result;
}
