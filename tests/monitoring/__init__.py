"""Tests of ``deploy/monitoring``: rules, runbooks and dashboards, against a real Prometheus."""
