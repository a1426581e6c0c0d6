/* Helpers of the kernel that tell of a socket, declared here as bcc does not, or not rightly. */
#pragma once

/* bcc declares the result of this helper as 32 bits. */
static __u64 (*socket_cookie)(void *context) = (void *)BPF_FUNC_get_socket_cookie;

/* bcc does not know this helper. On kernels without it the loader puts NULL in its place. */
static void *(*skc_to_mptcp_sock)(void *socket) = (void *)196;
