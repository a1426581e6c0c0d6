"""Tests of ``bpfsvc.http``: no kernel, no root."""
