"""Network interfaces and their tc hooks, over rtnetlink.

::

    messages.py       the wire messages used here, in pyroute2's notation
    conversation.py   a netlink socket: one request, its answers or its refusal
    devices.py        interfaces as values; which to attach; which address masquerades. Pure
    network.py        reads those values from the kernel
    hooks.py          filters as values; what can stand in our way. Pure
    tc.py             attach, list and detach programs
    monitor.py        tells when the interfaces change

pyroute2 is the only third-party library in here, and nothing else of the agent imports it. Only its
message codec is used. Its sockets run on asyncio, and ``import pyroute2`` brings every protocol it
knows, sqlite and unittest: 12 MB beside the agent's other libraries, where the codec takes half
of one. The agent's whole budget is 60.
"""
