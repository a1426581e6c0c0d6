"""Kubernetes' own e2e tests of Services, run against a cluster, and what is expected of them."""
