"""Tests of ``bpfsvc.migration``: no kernel, no root."""
