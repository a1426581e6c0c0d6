"""Objects on their way from the source into the cache."""
