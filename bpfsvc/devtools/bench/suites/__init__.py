"""What is measured: each suite is one module that gives its steps; none knows another.

May import testbeds, steps, results and all below them.
"""
