"""All interleavings of packets, of the connection GC and of writes, for one pair of entries.

``make interleavings``. The compiled programs are interpreted, each run on a CPU of its own, and
whatever two runs may see of each other is a point where another run may go on. So the steps are the
programs' own.
"""
