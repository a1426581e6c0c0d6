"""Tests of ``bpfsvc.doctor``: no kernel, no root."""
