"""Tests on three levels: entries, packets, lab."""
