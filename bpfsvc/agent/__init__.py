"""The agent: its loop, and all that keeps the kernel in step with the objects of the cluster.

May import every room of the product but ``cli``, ``doctor`` and ``explain``; never ``devtools``.
"""
