"""Tests of ``bpfsvc.migration.kube_proxy``: no kernel, no root."""
