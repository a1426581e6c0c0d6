/*
 * Counts, and how they are printed. A line for each of the first failures of a kind, and of the first
 * slow answers, for example
 *
 *	{"time": "12:04:38.123", "seconds": 12.1, "event": "cut", "job": "hold,tcp,10.96.0.7,80,20",
 *	 "reason": "request ECONNRESET", "after": 0.003, "client": "10.244.1.3:40412", "backend": "web-x"}
 *
 * and every second, and at the end, one with all counts: "ok" answers; "failed": connections that
 * could not be made or had no answer, and datagrams without one; "cut": held connections that broke;
 * "open": held flows that have had an answer; "slow": answers after more than 0.9 s. Times are UTC.
 */
#include "load.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

uint64_t started;

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * SECOND + now.tv_nsec;
}

/* Count a name; return how often it has occurred. The last place takes those that find none. */
static unsigned int count(struct count *counts, unsigned int places, const char *name)
{
	unsigned int at = 0;

	while (at < places - 1 && counts[at].number && strcmp(counts[at].name, name))
		at++;
	if (!counts[at].number)
		snprintf(counts[at].name, NAME, "%s", at < places - 1 ? name : "others");
	return ++counts[at].number;
}

static void print_name(const char *name)
{
	putchar('"');
	for (; *name; name++)
		putchar(isalnum((unsigned char)*name) || strchr(" ,.:-_", *name) ? *name : '?');
	putchar('"');
}

static void print_counts(const char *title, const struct count *counts, unsigned int places)
{
	printf(", \"%s\": {", title);
	for (unsigned int at = 0; at < places && counts[at].number; at++) {
		if (at)
			printf(", ");
		print_name(counts[at].name);
		printf(": %u", counts[at].number);
	}
	printf("}");
}

static void print_time(void)
{
	struct timespec now;
	struct tm parts;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &parts);
	printf("{\"time\": \"%02d:%02d:%02d.%03ld\", \"seconds\": %.3f", parts.tm_hour,
	       parts.tm_min, parts.tm_sec, now.tv_nsec / (long)MS,
	       (double)(now_ns() - started) / SECOND);
}

static void print_client(int descriptor)
{
	char text[INET6_ADDRSTRLEN] = "";
	struct sockaddr_in6 own = {0};
	socklen_t size = sizeof(own);
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)&own;

	if (descriptor < 0 || getsockname(descriptor, (struct sockaddr *)&own, &size) < 0)
		return;
	if (own.sin6_family == AF_INET6)
		inet_ntop(AF_INET6, &own.sin6_addr, text, sizeof(text));
	else
		inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
	printf(", \"client\": \"%s:%u\"", text, ntohs(own.sin6_port));
}

static void print_event(const struct flow *flow, const char *event, const char *reason)
{
	print_time();
	printf(", \"event\": \"%s\", \"job\": \"%s\", \"reason\": \"%s\", \"after\": %.3f", event,
	       flow->job->text, reason, (double)(now_ns() - flow->began) / SECOND);
	print_client(flow->socket);
	if (flow->backend[0]) {
		printf(", \"backend\": ");
		print_name(flow->backend);
	}
	puts("}");
	fflush(stdout);
}

void count_answer(struct flow *flow, uint64_t took)
{
	struct job *job = flow->job;

	job->ok++;
	if (took > job->slowest)
		job->slowest = took;
	count(job->backends, BACKENDS, flow->backend);
	if (took > SLOW && ++job->slow <= EXAMPLES)
		print_event(flow, "slow", "answer");
}

void count_failure(struct flow *flow, const char *step, const char *reason)
{
	struct job *job = flow->job;
	bool cut = flow->opened && !job->udp;
	char name[NAME];

	snprintf(name, NAME, "%s %s", step, reason);
	if (cut)
		job->cut++;
	else
		job->failed++;
	if (count(job->failures, KINDS, name) <= EXAMPLES)
		print_event(flow, cut ? "cut" : "failed", name);
}

void report(const struct job *jobs, unsigned int number, bool ended)
{
	print_time();
	printf(", \"ended\": %s, \"jobs\": [", ended ? "true" : "false");
	for (unsigned int at = 0; at < number; at++) {
		const struct job *job = &jobs[at];
		unsigned int open = 0;

		for (unsigned int place = 0; place < job->places; place++)
			open += job->flows[place].opened;
		printf("%s{\"job\": \"%s\", \"ok\": %u, \"failed\": %u, \"cut\": %u, \"open\": "
		       "%u, ",
		       at ? ", " : "", job->text, job->ok, job->failed, job->cut, open);
		printf("\"slow\": %u, \"slowest\": %.3f", job->slow, (double)job->slowest / SECOND);
		print_counts("failures", job->failures, KINDS);
		print_counts("backends", job->backends, BACKENDS);
		printf("}");
	}
	puts("]}");
	fflush(stdout);
}
