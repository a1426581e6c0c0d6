"""An API server for tests, the demo and the benchmarks: the list and watch of kube-apiserver.

A client cannot be tested against answers that its author imagined, so this one does what the
Kubernetes documents "API concepts" and "API conventions" say, with the shapes that a real server
was recorded to send. What a Service needs is here, and nothing else: no admission, no defaults, no
controllers. From the inside out::

    resources    what there is to list and watch, and at which path
    status       refusals: the Status object that says why
    selectors    labelSelector and fieldSelector
    store        the objects, one revision for all of them, and what happened since
    pages        the answers to lists: pages, exact and minimal resource versions
    watches      one open watch: its backlog, its bookmarks, its end
    faults       what can be made to go wrong, while it runs
    events       events.k8s.io/v1: what a server accepts of them
    handler      HTTP
    server       ApiServer: listening, going away, coming back
    replay       a recorded cluster, event by event
    crowd        clusters of any size
    control      the same from outside the process; ``python -m bpfsvc.lab.apiserver``
"""

from __future__ import annotations

from bpfsvc.lab.apiserver.server import ApiServer

__all__ = ["ApiServer"]
