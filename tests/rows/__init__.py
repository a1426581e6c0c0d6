"""Cluster in, rows out: no kernel, no root."""
