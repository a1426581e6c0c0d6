"""From C sources to programs and maps in the kernel: compile, load, take over an older build.

May import datapath.syscall, datapath.bpf_map, datapath.maps and base.
"""
