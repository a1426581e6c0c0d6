"""Kubernetes' rules: endpoints, policies and ranges become entries, and entries a plan. Pure.

May import only ``model`` and ``base``.
"""
