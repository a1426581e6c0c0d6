"""Tests of ``bpfsvc.kube``: no kernel, no root."""
