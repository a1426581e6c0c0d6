"""The processes that measure, beside the one that asks them.

The parts::

    children    how they are started, and talked to line by line
    datagrams   one that asks by UDP until another backend answers
    syns        one that floods with first packets
    tools       one that runs the tools of a node
    clocks      the CPU time that a process has used

Nothing is imported here, so that those that are started bare start in 20 ms.
"""
