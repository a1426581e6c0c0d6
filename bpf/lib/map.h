/*
 * How a map is declared. The macro is bcc's. It defines an object, and programs use the map through
 * that object.
 */
#pragma once

#define MAP(type, key, value, name, entries, flags) \
	BPF_F_TABLE(type, key, value, name, entries, flags)

/*
 * Programs are compiled once for all sizes and kernels. The sizes of maps are set when the maps are
 * made; a number that programs calculate with is written into the instructions when they are
 * loaded. So elsewhere than in MAP() a size is used by LOADED_NUMBER() only: its own number means
 * nothing. LOADED_ATOMICS is 1 where the kernel has atomic operations that return a value;
 * LOADED_SOCKET_* are offsets in the kernel's own `struct sock_common`. An index is masked, because
 * a division by a number that the compiler does not know takes long; if the size is no power of two,
 * the entries up to the next lower one are used.
 */
enum loaded_number {
	LOADED_MAX_CONNECTIONS = 1,
	LOADED_MASK_DIRECT_FLOWS = 2,
	LOADED_ATOMICS = 3,
	LOADED_SOCKET_STATE = 4,
	LOADED_SOCKET_COOKIE = 5,
	LOADED_SOCKET_V6 = 6,
};

/* The kind of constant that the loader fills in; the kernel knows kinds up to 6. */
enum loaded_kind {
	LOADED_KIND = 15,
};

#define LOADED_NUMBER(name) bpf_pseudo_fd(LOADED_KIND, LOADED_##name)

#define EEXIST 17 /* negative, what an insertion returns if there is an entry */

/*
 * Have the layout describe a struct that is the value of no map, for the agent to read or write it.
 * No map is made of it.
 */
#define DESCRIBE(name) MAP("array", __u32, struct name, struct_##name, 1, 0)

/*
 * A ring of bytes, from programs to the agent. It has no entries: its size is in bytes. (bcc takes
 * its calls from the names of the fields, and wants a key and a value.)
 */
#define RING(name, bytes)                                                                     \
	struct name##_table_t {                                                               \
		int key;                                                                      \
		__u32 leaf;                                                                   \
		void *(*ringbuf_reserve)(__u64);                                              \
		void (*ringbuf_submit)(void *, __u64);                                        \
		__u32 max_entries;                                                            \
	};                                                                                    \
	__attribute__((section("maps/ringbuf"))) struct name##_table_t name = {.max_entries = \
										       (bytes)}

/* Values in the storage of sockets: one for each socket, gone when the socket is. */
#define SOCKET_STORAGE(value, name) \
	BPF_F_TABLE("sk_storage", int, value, name, 0, BPF_F_NO_PREALLOC)

/* A queue of values: no key, and what is put first is taken first. */
#define QUEUE(value, name, entries) BPF_QUEUE(name, value, entries)
