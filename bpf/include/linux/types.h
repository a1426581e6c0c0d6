/*
 * The few types that bcc's own headers and the programs need. Programs of the network hooks touch
 * nothing but stable kernel interfaces, so this folder stands in for kernel headers on every node.
 */
#ifndef BPFSVC_LINUX_TYPES_H
#define BPFSVC_LINUX_TYPES_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s8 s8;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;

/* Big endian, as on the wire. Checksums are sums of such words. */
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u16 __sum16;
typedef __u32 __wsum;

typedef unsigned long uintptr_t;
typedef unsigned long size_t;
typedef _Bool bool;

#define __aligned_u64 __u64 __attribute__((aligned(8)))
#define true 1
#define false 0
#ifndef NULL
#define NULL ((void *)0)
#endif

#endif
