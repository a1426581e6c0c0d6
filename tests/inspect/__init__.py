"""Tests of ``bpfsvc.inspect``: no kernel, no root."""
