"""Tests of ``bpfsvc.metrics``: no kernel, no root."""
