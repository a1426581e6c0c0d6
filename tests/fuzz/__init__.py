"""Random histories of packets, time and control-plane writes, held against a model.

``make fuzz MINUTES=n SEED=s``. The real programs run by test runs, at both hooks, with a clock and
random numbers that belong to the history: the same history always ends in the same way.
"""
