"""Everything that meets the kernel: compiling, pinning, maps, attachment, netlink, sysctls.

May import services, model and base.
"""
