"""Tests of ``bpfsvc.kubeproxy_cleanup``: no kernel, no root."""
