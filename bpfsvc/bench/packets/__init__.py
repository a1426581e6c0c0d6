"""Packets that no socket sends, and programs that run on them because they are told to.

The parts::

    flows          who sends to whom, as whole frames
    testruns       a program on a packet, timed; or on frames, as a driver would
    instructions   programs of a few instructions
    frameprograms  those that send, count and turn frames round
    crossing       connections whose packets can be translated again and again
    edgepath       the same, forwarded at the edge
"""
