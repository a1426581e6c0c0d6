"""``bpfsvc doctor``: facts about this node, and the findings they lead to. Changes nothing.

May import inspect, kubeproxy_cleanup and all rooms below them.
"""
