"""What bpfsvc costs and how fast it is, measured on this machine, in labs of its own.

``python -m bpfsvc.bench [SUITE ...]`` as root. The suites::

    latency   transactions through a Service, against the same pair of endpoints without one
    change    from a changed file to changed packets
    start     from the start of the process to balanced packets, and the memory of the agent
    flood     established and new connections while somebody sends first packets only

Everything compared is compared within one run, turn by turn, so that what else the machine does
falls on all alike; what is left of it is measured too (the rows named ``control``). Nothing is
imported here, so that the processes of this package (``transactions``, ``datagrams``, ``syns``)
start in 20 ms.
"""
