"""Tests of ``bpfsvc explain`` that need no kernel."""
