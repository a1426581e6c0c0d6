"""What ``bpfsvc observe`` reads: events of the kernel, with the names of Services and pods."""
