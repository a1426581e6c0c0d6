"""Tests of ``bpfsvc verify``: what kube-proxy's rules and bpfsvc's maps do to each client."""
