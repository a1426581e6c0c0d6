"""Checks that ``make lint`` runs: programs, no tests."""
