"""What happens to the cluster: at random, each until it is done. No event may cost a connection."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bpfsvc.devtools.lab.dial import tally
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.testbed import Named, Testbed, objects
from tests.soak.traffic import KEPT, ROLLED, STEADY, Traffic

_CHURNED = tuple(Named(f"churned-{number}", 100 + number) for number in range(30))
_SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"sessionAffinity": "ClientIP"},
    {"externalTrafficPolicy": "Local"},
    {"loadBalancerSourceRanges": ["192.168.50.0/24", "fd50::/64"]},
    {"annotations": {"bpfsvc.io/scheduler": "lc"}},
    {"annotations": {"bpfsvc.io/scheduler": "mh"}},
    {"annotations": {"bpfsvc.io/on-removal": "drain", "bpfsvc.io/drain-seconds": "1"}},
    {"annotations": {"bpfsvc.io/quarantine": "2 failures/60s for 8s"}},
)

_ROLLED_PODS = 2
"""Of each node."""

_ADDRESSES = range(100, 105)
"""The last digits of addresses that pods of ``ROLLED`` have, one pod after another."""

_IMPATIENT = ("--last-good-after", "500ms")
_LONGEST_START = 120.0
"""Seconds; a newer version is compiled before it starts."""

_INTERRUPTED = 0.15
"""The part of changes after which an agent is killed at once."""


class _Rolled(NamedTuple):
    """A pod that will be replaced, and the last digits of its addresses."""

    pod: LabPod
    digits: int


class Events:
    """Changes a testbed. The agent of its first node stays alive; that of the other one does not.

    ``newer``: a directory with another version of bpfsvc.
    """

    def __init__(self, testbed: Testbed, chance: random.Random, newer: Path) -> None:
        self._testbed, self._chance, self._newer = testbed, chance, newer
        self._cluster = testbed.cluster
        self._restless = testbed.lab.nodes[1]
        self._version: Path | None = None
        self._fixed: Sequence[LabPod] = testbed.lab.pods
        self._free = {node.name: deque(_ADDRESSES) for node in testbed.lab.nodes}
        self._rolled = [
            self._new_pod(node) for node in testbed.lab.nodes for _ in range(_ROLLED_PODS)
        ]
        self._traffic: Traffic
        self.counts: Counter[str] = Counter()
        for named in (KEPT, STEADY):
            self._cluster.put(named.name, *objects(named, self._fixed))
        self._put_rolled()

    def begin(self, traffic: Traffic) -> None:
        """From now on events may not cost this traffic anything."""
        self._traffic = traffic

    def happen(self) -> None:
        """Have something happen, and return when it is over and all clients have got further."""
        kinds: Mapping[str, tuple[int, Callable[[], None]]] = {
            "pods replaced": (4, self._roll),
            "endpoints of a Service changed": (4, self._change_endpoints),
            "Services changed": (4, self._change_services),
            "agents killed": (2, self._kill),
            "agents stopped": (1, self._stop),
            "agents of another version": (1, self._upgrade),
            "absences of the API server": (1, self._be_without_server),
            "watches cut": (1, self._cut),
        }
        weights = [weight for weight, _ in kinds.values()]
        (name,) = self._chance.choices(list(kinds), weights)
        kinds[name][1]()
        self.counts[name] += 1
        self._traffic.converse()
        self._traffic.work_on()

    def put_back(self) -> None:
        """Have the objects of the beginning again."""
        for named in _CHURNED:
            self._cluster.put(named.name)
        self._cluster.put(KEPT.name, *objects(KEPT, self._fixed))
        self._cluster.settle()

    # -- changes of objects ------------------------------------------------------------------------

    def _roll(self) -> None:
        """Replace a pod; the new one has an address that another pod has had."""
        old = self._chance.choice(self._rolled)
        new = self._new_pod(old.pod.node)
        self._rolled.append(new)
        if self._chance.random() < 0.5:  # both serve for a while
            self._put_rolled()
            self._settle()
        self._rolled.remove(old)
        self._put_rolled()
        self._settle()
        self._traffic.work_on()
        self._wait_until_closed(old.pod)
        old.pod.remove()
        self._free[new.pod.node.name].append(old.digits)

    def _wait_until_closed(self, pod: LabPod) -> None:
        """Wait until a pod has no connections; the error has those that are left."""
        try:
            wait(lambda: not _connections(pod), f"connections of {pod.name} are closed", 60)
        except TimeoutError as error:
            entries = [
                line
                for node in self._testbed.lab.nodes
                for line in self._cluster.command(node, "maps", "dump").stdout.splitlines()
                if any(f"{pod.address(family)}:" in line for family in self._testbed.lab.families)
            ]
            raise TimeoutError("\n".join([str(error), _connections(pod), *entries])) from error

    def _new_pod(self, node: LabNode) -> _Rolled:
        digits = self._free[node.name].popleft()
        networks = node.pod_cidrs.values()
        pod = node.add_pod(
            addresses=[
                str(network.network_address + int(str(digits), 10 if network.version == 4 else 16))
                for network in networks
            ]
        )
        pod.serve()
        return _Rolled(pod, digits)

    def _put_rolled(self) -> None:
        self._cluster.put(ROLLED.name, *objects(ROLLED, [rolled.pod for rolled in self._rolled]))

    def _some_pods(self, fewest: int) -> list[LabPod]:
        return self._chance.sample(self._fixed, self._chance.randint(fewest, len(self._fixed)))

    def _put_kept(self) -> None:
        self._cluster.put(KEPT.name, *objects(KEPT, self._some_pods(1)))

    def _change_endpoints(self) -> None:
        self._put_kept()
        self._settle()

    def _change_services(self) -> None:
        served = []
        for named in self._chance.sample(_CHURNED, self._chance.randint(1, 8)):
            if self._chance.random() < 0.4:
                self._cluster.put(named.name)
                continue
            pods = self._some_pods(0)
            self._cluster.put(named.name, *objects(named, pods, **self._chance.choice(_SPECS)))
            served += [named] if pods else []
        self._settle()
        for named in served:
            family = self._chance.choice(self._testbed.lab.families)
            client = self._chance.choice((self._testbed.pod, self._restless))
            answers = tally(client, named.vip(family), 80, count=3)
            for failure in answers.keys() - {pod.name for pod in self._fixed}:
                self._traffic.note(f"{named.name}: {failure}")

    def _settle(self) -> None:
        """Return when the kernel has the change; it may be that an agent did not live to write."""
        if self._chance.random() < _INTERRUPTED:
            self._cluster.kill(self._restless)
            self._start()
        self._cluster.settle()

    # -- agents and the API server -----------------------------------------------------------------

    def _start(self, options: Sequence[str] = ()) -> None:
        agent = self._cluster.launch(self._restless, options=options, cwd=self._version)
        agent.ready(_LONGEST_START)

    def _kill(self) -> None:
        self._cluster.kill(self._restless)
        self._put_kept()
        self._traffic.work_on()
        self._start()
        self._cluster.settle()

    def _stop(self) -> None:
        self._cluster.stop(self._restless)
        self._put_kept()
        self._traffic.work_on()
        self._start()
        self._cluster.settle()

    def _upgrade(self) -> None:
        """Start the other version: a newer one, or again the one before."""
        self._version = None if self._version else self._newer
        self._cluster.kill(self._restless)
        self._start()
        self._cluster.settle()

    def _be_without_server(self) -> None:
        """Changes come when it is back; it may have forgotten what changed, and agents may die."""
        api = self._cluster.api
        # Without a snapshot an agent that starts now is not healthy before the server is back.
        snapshot = self._cluster.snapshot_file(self._restless)
        wait(snapshot.exists, "the first snapshot", _LONGEST_START)
        api.go_away()
        try:
            self._put_kept()
            if self._chance.random() < 0.5:
                api.compact()
            if self._chance.random() < 0.5:
                self._cluster.kill(self._restless)
                self._start(_IMPATIENT)
            self._traffic.work_on()
        finally:
            api.come_back()
        self._cluster.settle()

    def _cut(self) -> None:
        self._cluster.api.cut_watches(inside=self._chance.random() < 0.5)
        self._put_kept()
        self._settle()


def _connections(pod: LabPod) -> str:
    """Return the connections of a pod that both sides have not closed yet."""
    command = ["ss", "-Htnoi", "exclude", "listening", "exclude", "time-wait"]
    return pod.run(command).stdout
