"""Tests of ``bpfsvc.bench``: no kernel, no root."""
