"""Three heights of tests: rows, packets, lab."""
