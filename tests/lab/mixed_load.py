"""Load of every kind on the Service ``WEB``, of which nothing may fail.

New connections and long streams, by packets and by sockets, from inside and from outside, and
datagrams.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bpfsvc.devtools.lab.load import Kind, Load, more
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import stretched
from tests.lab.testbed import WEB, Testbed


@contextmanager
def mixed_load(testbed: Testbed, pause: float = 0.0) -> Iterator[list[Load]]:
    """Keep up load of every kind; at the end, none may have failed.

    ``pause``: seconds between two connections of the pod; the others take a little time anyway.
    """
    pods = tuple(pod.name for pod in testbed.lab.pods)
    pod, node, client = testbed.pod, testbed.node, testbed.client
    wanted: list[tuple[Namespace, Kind, str, int, dict[str, object]]] = [
        (pod, "connect", WEB.vip(4), 80, {"interval": pause}),
        (pod, "stream", WEB.vip(6), 80, {}),
        (pod, "datagram", WEB.vip(4), 80, {}),
        (pod, "datagram", WEB.vip(6), 80, {"fresh": False}),
        (node, "connect", WEB.vip(6), 80, {"interval": 0.01}),
        (node, "stream", WEB.vip(4), 80, {}),
        (client, "connect", node.address(), WEB.node_port, {"interval": 0.01}),
        (client, "stream", node.address(), WEB.node_port, {}),
        (client, "datagram", node.address(), WEB.node_port, {"workers": 4}),
        (client, "datagram", node.address(6), WEB.node_port, {"workers": 4}),
    ]
    usual = {"seconds": stretched(60), "interval": 0.02, "expected": pods}
    loads = [
        place.load(kind, address, number, **{**usual, **more})
        for place, kind, address, number, more in wanted
    ]
    work_on(loads)
    yield loads
    work_on(loads)
    for load in loads:
        result = load.stop()
        assert result.failures == {}, result.examples


def work_on(loads: list[Load]) -> None:
    """Return when each kind of load has done 20 more."""
    more(loads, 20)
