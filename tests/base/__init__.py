"""Tests of ``bpfsvc.base``: no kernel, no root."""
