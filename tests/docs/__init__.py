"""Tests of the documents: no kernel, no root."""
