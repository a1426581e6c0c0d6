"""``bpfsvc verify``: do kube-proxy's rules on this node and bpfsvc's maps say the same?

May import the other rooms of migration but shadow, inspect, and all rooms below them.
"""
