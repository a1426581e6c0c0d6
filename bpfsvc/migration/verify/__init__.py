"""``bpfsvc verify``: do kube-proxy's rules on this node and bpfsvc's maps say the same?

May import inspect, kubeproxy_cleanup and all rooms below them.
"""
