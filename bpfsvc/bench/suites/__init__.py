"""What is measured; each suite is one module, gives its steps, and knows no other.

The suites::

    traffic     pods and edge: rates and latency of every mode, at every size of cluster
    frames      packets from outside, as a driver receives them
    programs    the programs alone, in nanoseconds
    change      from a change to changed packets
    start       from the start of the process to balanced packets, and the memory of the agent
    churn       endpoints that change all the time
    flood       established and new connections while somebody sends first packets only

What they share::

    turns       one kind of load on all stands, turn by turn
    order       who comes next
    durations   how long a mode takes to set up
"""
