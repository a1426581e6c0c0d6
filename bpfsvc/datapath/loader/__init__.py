"""From C sources to programs and maps in the kernel: compile, load, take over an older build.

May import datapath.syscall, datapath.maps and base.
"""
