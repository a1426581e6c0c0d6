"""A long life of a node: changes, restarts and traffic at random, and what grows meanwhile."""
