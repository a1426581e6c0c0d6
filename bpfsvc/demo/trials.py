"""What must not be noticed: a Deployment that is rolled, and an agent that dies, both under load.

The load is a pod's connections to a Service, each with a request, one after the other as fast as
they go, and beside them connections that stay open all the time. Not one may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from bpfsvc.demo.cases import Check
from bpfsvc.demo.objects import NGINX, Target
from bpfsvc.demo.stage import Stage
from bpfsvc.lab import dial
from bpfsvc.lab.load import Load, Result
from bpfsvc.lab.namespace import Namespace
from bpfsvc.lab.patience import stretched, wait
from bpfsvc.lab.pod import Pod

ROLLS = 3
_REQUESTS = 500
"""Successful requests that each step waits for: the step is in force, and nothing broke."""

_STREAMS = 20
_SAMPLE = 40
"""Questions after which a pod that never answered is out: one of two stays silent so long once in
10^12 times."""

_LIMIT = 60.0


class Pressure:
    """The two loads of a trial, and what came of them."""

    def __init__(self, place: Namespace, target: Target) -> None:
        address, port, _ = target
        self._place, self._target = place, target
        self._connects: Load = place.load("connect", address, port, seconds=stretched(_LIMIT))
        self._streams: Load = place.load(
            "stream", address, port, seconds=stretched(_LIMIT), connections=_STREAMS, interval=0.02
        )
        self.results: list[Result] = []
        self.step()

    def step(self) -> None:
        """Let the load go on for a while."""
        self._connects.more(_REQUESTS)
        self._streams.more(_STREAMS)

    def expect(self, pods: Collection[Pod]) -> None:
        """Wait until all of these pods get new connections and no other does."""
        names = {pod.name for pod in pods}

        def answering() -> bool:
            return set(dial.tally(self._place, *self._target, count=_SAMPLE)) == names

        wait(answering, f"only {', '.join(sorted(names))} answer")
        self.step()

    def stop(self) -> None:
        """End the load."""
        self.results = [self._connects.stop(), self._streams.stop()]

    def checks(self, what: str) -> Iterator[Check]:
        """Judge: nothing may have failed."""
        connects, streams = self.results
        for kind, result in (
            (f"{connects.ok} connections at {connects.rate:.0f}/s", connects),
            (f"{_STREAMS} that stayed open, {streams.ok} requests", streams),
        ):
            found = Check(f"{what}: {kind}, {result.failed} failures", requests=result.ok)
            found.faults += [f"{count} {kind}" for kind, count in result.failures.items()]
            found.faults += result.examples[:3]
            yield found


@contextmanager
def pressure(place: Namespace, target: Target) -> Iterator[Pressure]:
    """Put a Service under load within."""
    load = Pressure(place, target)
    yield load
    load.stop()


def rollout(stage: Stage, tell: Callable[[str], None]) -> Iterator[Check]:
    """Replace all pods of a Deployment again and again: a new one ready, then an old one gone.

    The first pods leave the Service but live on, as pods do in their grace period: connections
    they hold must stay with them.
    """
    pods = list(stage.nginx)
    with pressure(stage.shell, NGINX) as load:
        for revision in range(2, ROLLS + 2):
            for place, node in enumerate(stage.nodes):
                old = pods[place]
                new = pods[place] = stage.add_pod(node, f"nginx-{node.number}-v{revision}")
                stage.publish("nginx-service", [*pods, old])
                load.step()
                stage.publish("nginx-service", pods)
                load.expect(pods)
                if old not in stage.nginx:
                    old.remove()
                tell(f"{new.name} has taken the place of {old.name}")
    yield from load.checks(f"{2 * ROLLS} pods replaced")


def killed_agent(stage: Stage, tell: Callable[[str], None]) -> Iterator[Check]:
    """Kill the agent of the clients' node; change the Service meanwhile; start it again."""
    node = stage.nodes[1]
    with pressure(stage.shell, NGINX) as load:
        stage.cluster.kill(node)
        tell(f"the agent of {node.name} is dead (kill -9)")
        load.step()
        late = stage.add_pod(node, "nginx-late")
        stage.publish("nginx-service", [late])
        load.step()
        stage.cluster.start(node)
        tell("it is back, and has adopted what it found")
        load.expect([late])
        tell("what changed meanwhile is in force")
    yield from load.checks("agent killed and restarted")
