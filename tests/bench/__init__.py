"""Tests of ``bpfsvc.devtools.bench``: no kernel, no root."""
