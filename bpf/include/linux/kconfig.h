/* bcc's headers declare the bpf helpers only under this option. */
#define CONFIG_BPF_SYSCALL 1
