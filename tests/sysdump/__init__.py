"""Tests of ``bpfsvc.cli``: no kernel, no root."""
