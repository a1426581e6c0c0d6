"""The demonstration: two nodes, four pods and a client, and every way in which they use Services.

``python -m bpfsvc.devtools.demo`` (``make demo``). May import lab; starts agents as processes. In
order::

    objects      the manifests, with the classic examples of the Kubernetes literature
    testbed      a lab with these pods and one agent per node that follows these manifests
    traffic      the seven kinds of traffic, sent and checked
    dumps        the output of `bpfsvc maps dump`
    disruptions  a Deployment rolled, and an agent killed, under load
    screen       how all this is shown

May import the lab, and rich; the agent runs as a process.
"""
