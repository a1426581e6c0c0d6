"""Tests of ``bpfsvc.services``: no kernel, no root."""
