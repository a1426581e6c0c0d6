"""``bpfsvc observe``: which events are shown, and their text."""
