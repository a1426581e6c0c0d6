"""``bpfsvc doctor``: facts about this node, and the findings they lead to. Changes nothing.

``collect`` meets the kernel and tools and returns the values of ``facts``; ``check`` is pure and
turns them into findings. May import migration, inspect, and all rooms below them.
"""
