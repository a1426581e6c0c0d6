"""Coverage of the C programs: which outcome of which condition the tests have seen."""
