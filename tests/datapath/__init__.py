"""Tests of ``bpfsvc.datapath``: no kernel, no root."""
