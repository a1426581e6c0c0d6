"""From kube-proxy to bpfsvc: compare their decisions, and remove kube-proxy's leftovers."""
