"""The page of the node: what the commands show, for a browser, by a process of its own."""
