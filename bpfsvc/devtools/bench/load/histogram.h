/*
 * How long operations took: exact below 64 ns, then 32 buckets for each power of two, so that a
 * bucket is at most 3 % wide.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

#define STEPS_BITS 5
#define STEPS (1 << STEPS_BITS)
#define BUCKETS ((64 - STEPS_BITS + 1) * STEPS)

struct histogram {
	uint64_t counts[BUCKETS];
};

static inline void histogram_add(struct histogram *histogram, uint64_t ns)
{
	unsigned int shift = 0;

	if (ns >= 2 * STEPS)
		shift = 63 - STEPS_BITS - __builtin_clzll(ns);
	histogram->counts[shift * STEPS + (ns >> shift)]++;
}

/* The first value that belongs to a later bucket, in nanoseconds. */
static inline uint64_t bucket_end(unsigned int bucket)
{
	unsigned int shift = bucket < 2 * STEPS ? 0 : bucket / STEPS - 1;

	return (uint64_t)(bucket - shift * STEPS + 1) << shift;
}

/* As JSON: [upper edge in microseconds, count] of each bucket with something in it. */
static inline void histogram_print(const struct histogram *histogram)
{
	const char *separator = "";

	putchar('[');
	for (unsigned int bucket = 0; bucket < BUCKETS; bucket++) {
		uint64_t end = bucket_end(bucket);

		if (!histogram->counts[bucket])
			continue;
		printf("%s[%" PRIu64 ".%03u, %" PRIu64 "]", separator, end / 1000,
		       (unsigned int)(end % 1000), histogram->counts[bucket]);
		separator = ", ";
	}
	putchar(']');
}
