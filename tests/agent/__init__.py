"""Tests of ``bpfsvc.agent``: no kernel, no root."""
