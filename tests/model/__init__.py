"""Tests of ``bpfsvc.model``: no kernel, no root."""
