"""Attach programs to interfaces (tcx, tc, XDP) and to the cgroup.

May import services, model, base, and of the data path: syscall, loaded, build, maps and netlink.
"""
