"""The memory of a node: what has changed in its Services, and which connections failed.

saved_records  records of a bounded size, in memory and in files
changes        what plans have changed in the kernel
failures       connections that failed, counted
"""
