"""Kubernetes' rules: which endpoints count, where a Service answers, who gets what there."""
