"""Kubernetes Services by eBPF: a node agent in place of kube-proxy, beside any CNI."""

__version__ = "0.1.0"
