"""The processes that measure, beside the one that asks them.

The parts::

    children    how they are started, and talked to line by line
    datagrams   one that asks by UDP until another backend answers
    syns        one that floods with first packets
    clocks      the CPU time that a process has used

Nothing is imported here, so that ``datagrams`` and ``syns`` start in 20 ms.
"""
