"""Gathers the facts: a module for each subject, each a function ``look``. Changes nothing."""
