"""From the entries that are wanted and the entries that are applied to a plan of operations."""
