/*
 * A load of requests on Services, with one thread and little CPU time.
 *
 *	load SECONDS JOB...
 *	JOB is connect|hold|keep,tcp|udp,ADDRESS,PORT,NUMBER
 *
 * `connect` opens NUMBER connections a second: a request, its answer, the end. `hold` keeps NUMBER
 * connections with a request on each every 100 ms; one that breaks is cut, and opened again. `keep`
 * does the same with a request every 5 s. With udp the same by datagrams from a socket each. The
 * server is agnhost's netexec: the answer names it.
 *
 * Once a second, and at the end, a line of JSON holds the counts of all jobs; the first failures
 * of each kind are lines of their own (see report.c). It ends after SECONDS, or by SIGTERM. By
 * SIGUSR1 held connections end, one after the other, and the new ones go on.
 */
#include "load.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#define JOBS 16
#define EVENTS 64
#define PRIORITY (-10) /* of the process: what it is not run for looks like a slow answer */

int watcher;
static volatile sig_atomic_t stopped;
volatile sig_atomic_t released;

static void stop(int number)
{
	if (number == SIGUSR1)
		released = 1;
	else
		stopped = 1;
}

static void refuse(const char *what)
{
	fprintf(stderr,
		"load: %s\nusage: load SECONDS connect|hold|keep,tcp|udp,ADDRESS,PORT,NUMBER...\n",
		what);
	exit(2);
}

static bool read_address(struct job *job, const char *text, unsigned int port)
{
	job->to.v4.sin_family = AF_INET;
	job->to.v4.sin_port = htons(port);
	job->size = sizeof(job->to.v4);
	if (inet_pton(AF_INET, text, &job->to.v4.sin_addr) == 1)
		return true;
	job->to.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
	job->size = sizeof(job->to.v6);
	return inet_pton(AF_INET6, text, &job->to.v6.sin6_addr) == 1;
}

static void read_job(struct job *job, const char *text)
{
	char kind[8], protocol[4], address[INET6_ADDRSTRLEN], rest;
	unsigned int port;

	job->text = text;
	if (sscanf(text, "%7[a-z],%3[a-z],%45[0-9a-fA-F:.],%u,%u%c", kind, protocol, address, &port,
		   &job->number, &rest) != 5)
		refuse(text);
	job->pause = strcmp(kind, "keep") ? PAUSE : LONG_PAUSE;
	job->hold = job->pause == LONG_PAUSE || !strcmp(kind, "hold");
	job->udp = !strcmp(protocol, "udp");
	if ((!job->hold && strcmp(kind, "connect")) || (!job->udp && strcmp(protocol, "tcp")))
		refuse(text);
	if (!job->number || job->number > 10000 || !port || port > 65535)
		refuse(text);
	if (!read_address(job, address, port))
		refuse(text);
}

/* Where that is allowed. With autogroups, the session's share of the processors counts, too. */
static void come_first(void)
{
	FILE *group = fopen("/proc/self/autogroup", "w");

	setpriority(PRIO_PROCESS, 0, PRIORITY);
	if (group) {
		fprintf(group, "%d", PRIORITY);
		fclose(group);
	}
}

/* Run all jobs until `end`; then begin nothing, and wait for answers that are due. */
static void run(struct job *jobs, unsigned int number, uint64_t end)
{
	uint64_t now = now_ns(), next_report = now + SECOND;
	struct epoll_event events[EVENTS];
	bool going = true;

	for (unsigned int at = 0; at < number; at++)
		prepare(&jobs[at], now);
	while (going) {
		bool last = stopped || now >= end;
		uint64_t next = next_report;
		int ready;

		going = !last;
		for (unsigned int at = 0; at < number; at++) {
			uint64_t step = advance(&jobs[at], now, last);

			next = step < next ? step : next;
			going |= busy(&jobs[at]);
		}
		/* Rounded up: a millisecond later is better than a turn for nothing. */
		ready = epoll_wait(watcher, events, EVENTS, next > now ? (next - now) / MS + 1 : 0);
		for (int at = 0; at < ready; at++)
			look(events[at].data.ptr);
		now = now_ns();
		if (now >= next_report) {
			report(jobs, number, false);
			next_report = now + SECOND;
		}
	}
	report(jobs, number, true);
}

int main(int count, char **words)
{
	static struct job jobs[JOBS];
	struct sigaction action = {.sa_handler = stop};
	int seconds = count > 1 ? atoi(words[1]) : 0;

	if (count < 3 || count - 2 > JOBS || seconds <= 0)
		refuse("SECONDS and up to 16 jobs are needed");
	for (int at = 2; at < count; at++)
		read_job(&jobs[at - 2], words[at]);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGUSR1, &action, NULL);
	come_first();
	watcher = epoll_create1(EPOLL_CLOEXEC);
	started = now_ns();
	run(jobs, count - 2, started + seconds * SECOND);
	return 0;
}
