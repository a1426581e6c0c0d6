/* What programs of raw tracepoints are handed, and how they read the kernel's own memory. */
#pragma once

/* The arguments of the tracepoint. A tracepoint that has fewer than a program reads refuses it. */
struct raw_tracepoint {
	__u64 arguments[3];
};

/* bcc's declaration has pointers, which it would rewrite. */
static long (*read_kernel)(void *to, __u32 size, __u64 from) = (void *)BPF_FUNC_probe_read_kernel;
