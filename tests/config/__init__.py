"""Tests of ``bpfsvc.config``: no kernel, no root."""
