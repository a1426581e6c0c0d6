"""What bpfsvc costs and how fast it is, measured on this machine, in labs of its own.

``bpfsvc bench`` as root. From the outside in::

    suites      a run: the suites of a plan, as steps
    steps       taking them, one after the other; interruption: being told to stop
    traffic     suites pods and edge: rates and latency of every mode, at every size of cluster
    frames      packets from outside, as a driver receives them
    programs    the programs alone, in nanoseconds
    change      from a change to changed packets
    start       from the start of the process to balanced packets, and the memory of the agent
    churn       endpoints that change all the time
    flood       established and new connections while somebody sends first packets only

    modes       the ways to a backend that are compared; stands: each set up in a lab
    turns       one kind of load on all stands, turn by turn
    load        the load itself; rivals: the rules of others
    results     what was measured; aims: what should have been; report: both, told

Everything compared is compared within one run, turn by turn, so that what else the machine does
falls on all alike. Nothing is imported here, so that the processes of this package (``datagrams``,
``syns``) start in 20 ms.
"""
