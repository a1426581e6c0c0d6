"""What an agent is told: a file as kube-proxy's, flags as kube-proxy's, and settings of our own.

::

    file ── tree ── fitting ──┐
                              ├── defaults ── validation ── loading ── config.Config
    flags ────────────────────┘

Flags become the same mapping that a file holds, so there is one way to default, check and name a
field. Nothing here touches the machine: a file can be judged anywhere, and again while an agent
runs. An agent keeps none of these values but what :class:`bpfsvc.config.Config` holds.
"""
