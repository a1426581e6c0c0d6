"""Between kube-proxy and bpfsvc: compare their rules and decisions, remove what is left."""
