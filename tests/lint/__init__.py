"""Checks that ``make lint`` runs, and tests of them."""
