"""The demonstration: two nodes, four pods and a client, and every way in which they meet Services.

``python -m bpfsvc.demo`` (``make demo``) tells it in this order::

    objects      the manifests, the classic ones of the Kubernetes literature among them
    stage        a lab with these pods and one agent per node that follows these manifests
    cases        the seven kinds of traffic, asked for and judged
    trials       a Deployment rolled, and an agent killed, under load
    inspection   what `bpfsvc maps dump` says of it
    screen       how all this is shown
"""
