"""Network interfaces and their tc hooks, over rtnetlink.

May import services, model, base; pyroute2 only here.

::

    rtnetlink.py   requests over pyroute2's sockets; the only module that imports pyroute2
    devices.py     interfaces as values; which to attach; which address masquerades. Pure
    network.py     reads those values from the kernel
    details.py     MTU and XDP programs of interfaces; removes an interface
    monitor.py     reports changes of the interfaces
    hooks.py       filters as values; what can prevent an attachment. Pure
    tc.py          attaches, lists and detaches programs
    sock_diag.py   closes UDP sockets
    xfrm.py        counts IPsec policies
"""
