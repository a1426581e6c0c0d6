"""``bpfsvc cleanup --kube-proxy``: find and remove exactly what kube-proxy left in the kernel.

May import migration.netfilter, datapath and all rooms below them.
"""
