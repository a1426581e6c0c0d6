/* A load of requests on Services: its jobs, their flows and their counts. */
#ifndef LOAD_H
#define LOAD_H

#define _GNU_SOURCE

#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define MS 1000000ULL
#define SECOND (1000 * MS)

/*
 * How long to wait for an answer, with its connection if that is new. A SYN that is lost is sent
 * again after 1, 3 and 7 s: it is slow, not failed. A lost datagram is lost, however long one waits.
 */
#define LIMIT (10 * SECOND)
#define UDP_LIMIT (5 * SECOND)
#define PAUSE (100 * MS)	/* between the requests of a held flow, and before a new attempt */
#define LONG_PAUSE (5 * SECOND) /* between the requests of a kept one */
#define SLOW (900 * MS)		/* an answer that took longer: a SYN had to be sent again */
#define BEHIND (1 * SECOND)	/* what a job that was not run for so long makes up for */

#define FIRST_PORT 32768 /* the kernel's range of ports for clients */
#define PORTS 28232

#define KINDS 16    /* of failures that are told apart */
#define BACKENDS 64 /* that are told apart */
#define EXAMPLES 10 /* failures of a kind that are printed */
#define NAME 64
#define ANSWER 1024

/* A name and how often it occurred. */
struct count {
	char name[NAME];
	unsigned int number;
};

enum state {
	IDLE,	    /* no socket; a held flow is opened when it is due */
	CONNECTING, /* not yet established */
	WAITING,    /* for the answer to a request */
	RESTING,    /* held; the next request when it is due */
};

struct flow {
	struct job *job;
	int socket;
	enum state state;
	uint64_t began;	    /* its connection or its request */
	uint64_t due;	    /* the next step, or the end of patience; 0: none */
	bool opened;	    /* an answer has arrived on this connection */
	char backend[NAME]; /* which gave the last answer */
	size_t received;
	char answer[ANSWER + 1];
};

struct job {
	const char *text; /* as it was ordered */
	bool hold;	  /* flows are held, not new for each request */
	uint64_t pause;	  /* between the requests of a held one */
	bool udp;
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} to;
	socklen_t size;
	unsigned int number; /* of new flows a second, or of held flows */
	uint64_t next;	     /* when the next new flow is due */
	unsigned int port;   /* of the next new UDP flow, in turn */
	struct flow *flows;
	unsigned int places;

	unsigned int ok;
	unsigned int failed;
	unsigned int cut;
	unsigned int slow;
	uint64_t slowest;
	struct count failures[KINDS];
	struct count backends[BACKENDS];
};

/* flow.c: what a flow does. The names of failures are "connect REASON" and "request REASON". */

/* Give a job its flows; those that are held begin one after the other within their pause. */
void prepare(struct job *job, uint64_t now);

/* Begin what is due. Return the time of the next step. */
uint64_t advance(struct job *job, uint64_t now, bool last);

/* The socket of a flow is ready for something. */
void look(struct flow *flow);

/* True if a flow of the job waits for an answer. */
bool busy(const struct job *job);

extern int watcher; /* the epoll instance */

/* Held flows end when they have their answer, and are not opened again. */
extern volatile sig_atomic_t released;

/* report.c: lines of JSON on standard output. */

uint64_t now_ns(void);
void count_answer(struct flow *flow, uint64_t took);
void count_failure(struct flow *flow, const char *step, const char *reason);
void report(const struct job *jobs, unsigned int number, bool ended);
extern uint64_t started;

#endif
