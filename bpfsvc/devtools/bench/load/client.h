/* One run of a client: client.c drives it; streams.c and datagrams.c hold its operations. */
#ifndef CLIENT_H
#define CLIENT_H

#include "histogram.h"
#include "load.h"

#include <stdbool.h>

/* Results of a check of a client that may be ready; errors are negative errno values. */
#define PENDING 0
#define ANSWERED 1
#define FINISHED 2

/* One of the clients that run at the same time. */
struct client {
	int socket;    /* -1: none at present */
	bool finished; /* begins no more operations */
	bool refused;  /* the operation failed, and the next has not begun */
	bool sent;     /* all bytes of the operation are sent */
	unsigned int received;
	uint64_t began;	 /* its operation, in ns */
	uint64_t number; /* of its datagram */
};

struct run {
	const struct kind *kind;
	struct socket_address to;
	int watcher;
	int failure;	   /* errno that makes the run worthless */
	uint64_t start;	   /* in ns, like all times below */
	uint64_t deadline; /* for beginning an operation */
	uint64_t last;	   /* when the last one ended */
	uint64_t cpu;	   /* of this process */
	uint64_t numbers;  /* given to datagrams */
	uint64_t operations;
	uint64_t bytes;
	uint64_t errors;
	struct histogram histogram;
};

/* What a client does again and again. The functions return a result as above. */
struct kind {
	const char *name;
	int (*prepare)(struct run *, struct client *); /* before the clock starts; or NULL */
	int (*begin)(struct run *, struct client *);   /* an operation; or NULL: nothing to do */
	int (*ready)(struct run *, struct client *);   /* when the socket is ready */
	bool fresh_socket;			       /* a new socket for each operation */
	bool unsure;				       /* datagrams may get lost */
	bool stays; /* its connections serve the next order, too, if that is the same */
};

extern const struct kind connect_kind, request_kind, bulk_kind, datagrams_kind, questions_kind;

int make_socket(struct run *run, struct client *client, int kind);
int reach(struct run *run, struct client *client);
void drop(struct client *client);

/*
 * Make a socket of a kind and connect it from the next free port; return -EINPROGRESS when that is
 * begun. After another error there is no socket.
 */
int begin_flow(struct run *run, struct client *client, int kind);

/* Wait before the clock starts; -ETIMEDOUT if none of `events` happens. */
int await(struct client *client, short events, int ms);

#endif
