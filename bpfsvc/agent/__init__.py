"""The agent's loop, and what keeps the kernel and the agent's picture of the cluster together.

May import every room of the product but ``cli``, ``doctor`` and ``explain``; never
``lab``, ``bench`` or ``demo``.
"""
