"""The pinned maps: their layout, and how entries are written and read back."""
