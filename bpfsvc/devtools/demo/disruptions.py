"""What clients must not notice: a Deployment that is rolled, and an agent that dies, under load.

The load is a pod's connections to a Service, each with a request, one after the other as fast as
possible, and connections that stay open all the time. Not one may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from bpfsvc.devtools.demo.objects import NGINX, Target
from bpfsvc.devtools.demo.testbed import DemoTestbed
from bpfsvc.devtools.demo.traffic import DemoCheck
from bpfsvc.devtools.lab import dial
from bpfsvc.devtools.lab.load import Load, Result
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.pod import LabPod

Note = Callable[[str], None]
Disruption = Callable[[DemoTestbed, Note], Iterator[DemoCheck]]

_ROLLS = 3
_REQUESTS = 500
"""Successful requests that each step waits for: the step has taken effect, and nothing broke."""

_STREAMS = 20
_SAMPLE = 40
"""Requests after which a pod that never answered is out: one of two stays silent so long once in
10^12 times."""

_LIMIT = 60.0


class ServiceLoad:
    """New and open connections to a Service, and their results."""

    def __init__(self, namespace: Namespace, target: Target) -> None:
        address, port, _ = target
        self._namespace, self._target = namespace, target
        self._connects: Load = namespace.load("connect", address, port, seconds=stretched(_LIMIT))
        self._streams: Load = namespace.load(
            "stream", address, port, seconds=stretched(_LIMIT), connections=_STREAMS, interval=0.02
        )
        self._results: list[Result] = []
        self.go_on()

    def go_on(self) -> None:
        """Wait until both loads have made some more requests."""
        self._connects.more(_REQUESTS)
        self._streams.more(_STREAMS)

    def expect(self, pods: Collection[LabPod]) -> None:
        """Wait until all of these pods get new connections and no other does."""
        names = {pod.name for pod in pods}

        def answering() -> bool:
            return set(dial.tally(self._namespace, *self._target, count=_SAMPLE)) == names

        wait(answering, f"only {', '.join(sorted(names))} answer")
        self.go_on()

    def stop(self) -> None:
        """End both loads."""
        self._results = [self._connects.stop(), self._streams.stop()]

    def checks(self, what: str) -> Iterator[DemoCheck]:
        """Return a check of each load: nothing may have failed."""
        connects, streams = self._results
        for kind, result in (
            (f"{connects.ok} new connections at {connects.rate:.0f}/s", connects),
            (f"{streams.ok} requests on {_STREAMS} open connections", streams),
        ):
            check = DemoCheck(f"{what}: {kind}, {result.failed} failures", requests=result.ok)
            check.faults += [f"{count} {kind}" for kind, count in result.failures.items()]
            check.faults += result.examples[:3]
            yield check


@contextmanager
def load_on(namespace: Namespace, target: Target) -> Iterator[ServiceLoad]:
    """Put a Service under load within."""
    load = ServiceLoad(namespace, target)
    yield load
    load.stop()


def rollout(testbed: DemoTestbed, note: Note) -> Iterator[DemoCheck]:
    """Replace all pods of a Deployment again and again: a new pod ready, then an old pod gone.

    The first pods leave the Service but stay alive, as pods do in their grace period: connections
    they hold must stay with them.
    """
    pods = list(testbed.nginx)
    with load_on(testbed.shell, NGINX) as load:
        for revision in range(2, _ROLLS + 2):
            for index, node in enumerate(testbed.nodes):
                old = pods[index]
                new = pods[index] = testbed.add_pod(node, f"nginx-{node.number}-v{revision}")
                testbed.publish("nginx-service", [*pods, old])
                load.go_on()
                testbed.publish("nginx-service", pods)
                load.expect(pods)
                if old not in testbed.nginx:
                    old.remove()
                note(f"{new.name} has replaced {old.name}")
    yield from load.checks(f"{2 * _ROLLS} pods replaced")


def killed_agent(testbed: DemoTestbed, note: Note) -> Iterator[DemoCheck]:
    """Kill the agent of the clients' node; change the Service meanwhile; start it again."""
    node = testbed.nodes[1]
    with load_on(testbed.shell, NGINX) as load:
        testbed.cluster.kill(node)
        note(f"the agent of {node.name} is killed (kill -9)")
        load.go_on()
        late = testbed.add_pod(node, "nginx-late")
        testbed.publish("nginx-service", [late])
        load.go_on()
        testbed.cluster.start(node)
        note("it runs again and has restored its state from the kernel")
        load.expect([late])
        note("the change made meanwhile has taken effect")
    yield from load.checks("agent killed and restarted")


DISRUPTIONS: tuple[tuple[str, Disruption], ...] = (
    ("a Deployment rolled under load: not one failure", rollout),
    ("an agent killed and restarted under load: not one failure", killed_agent),
)
