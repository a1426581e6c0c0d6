"""Where it is measured: labs that are set up for one mode, and the agents in them.

May import the modes, clusters, load and processes of the benchmark, and the lab.
"""
