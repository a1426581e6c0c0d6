"""The load: a C program, and ``tool``, which builds it, starts it and gives it orders.

May import the lab, and the talker and clocks of the benchmark.
"""
