"""Tests of the lab's API server."""
