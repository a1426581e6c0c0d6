"""An API server for tests, the demo and the benchmarks: the list and watch of kube-apiserver.

A client cannot be tested with invented answers, so this server follows the Kubernetes documents
"API concepts" and "API conventions", with the formats recorded from a real server. It has the
resources that bpfsvc reads, and nothing else: no admission, no defaults, no controllers. From the
inside out::

    resources    the resources to list and watch, and their paths
    status       refusals: the Status object with the reason
    selectors    labelSelector and fieldSelector
    store        the objects, one revision for all of them, and the history of changes
    pages        the answers to lists: pages, exact and minimal resource versions
    watches      one open watch: its backlog, its bookmarks, its end
    faults       faults that can be turned on while it runs
    events       events.k8s.io/v1: which Events a server accepts
    handler      HTTP
    server       ApiServer: listening, stopping, listening again
    replay       a recorded cluster, event by event
    crowd        clusters of any size
    control      orders of another process to ``python -m bpfsvc.devtools.lab.apiserver``
"""

from __future__ import annotations

from bpfsvc.devtools.lab.apiserver.server import ApiServer

__all__ = ["ApiServer"]
