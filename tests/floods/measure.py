"""Flood a node while clients use it, and tell what the clients got."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from scapy.layers.l2 import Ether

from bpfsvc.devtools.lab.dial import OpenConnection, connect
from bpfsvc.devtools.lab.load import Load
from bpfsvc.devtools.lab.patience import stretched, wait
from tests.floods.floods import KINDS, Flood, Target
from tests.floods.sender import Sending
from tests.incidents.operator import Operator
from tests.lab.testbed import SLICE_PORTS, WEB, Named, Testbed, at, built_testbed, objects

RATE = 20_000
"""Packets a second that a flood offers."""

SECONDS = 6.0
OPTIONS = ("--max-connections", "262144", "--max-affinities", "16384")
AFFINE = Named("affine", 40)
SINGLE = Named("single", 41)
EMPTY = Named("empty", 42)
HELD = 20
_BEFORE = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What happened.

    * ``lost``: what went wrong with connections that were open before.
    * ``repeated``: SYNs of new connections that were sent again; a SYN without an answer costs a
      client a second.
    """

    name: str
    family: int
    sent: int
    seconds: float
    before: float
    during: float
    exchanges: int
    lost: dict[str, int]
    refused: dict[str, int]
    repeated: int

    @property
    def kept(self) -> float:
        """The part of the rate of new connections that was left."""
        return self.during / self.before if self.before else 0.0


class Row(NamedTuple):
    """A flood and the Service that it is for; None: it goes straight to a pod, as its clients do.

    What this costs the machine, it costs without a Service.
    """

    kind: str
    service: Named | None

    def __str__(self) -> str:
        return f"{self.kind}, {self.service.name if self.service else 'straight to a pod'}"


ROWS = (
    *(Row(kind, service) for kind in KINDS for service in (None, WEB)),
    Row("SYN", AFFINE),
    Row("SYN", SINGLE),
    Row("UDP", SINGLE),
    Row("SYN", EMPTY),
    Row("UDP", EMPTY),
)


class Scene(NamedTuple):
    """A lab whose first node is flooded."""

    operator: Operator

    @property
    def testbed(self) -> Testbed:
        """The lab and its agents."""
        return self.operator.testbed

    def measure(self, row: Row, family: int, *, seconds: float = SECONDS) -> Outcome:
        """Flood a NodePort or a pod; return when it is over and the agent is well again."""
        testbed = self.testbed
        address, port, cluster_address, cluster_port = self._used(row, family)
        with ExitStack() as ending:
            held = [
                ending.enter_context(connect(testbed.client, address, port)) for _ in range(HELD)
            ]
            for connection in held:
                connection.who()
            clients = [at(*connection.socket.getsockname()[:2]) for connection in held]
            whole = seconds + _BEFORE + 10
            streams = [
                testbed.client.load("stream", address, port, seconds=whole, interval=0.05),
                testbed.pod.load(
                    "stream", cluster_address, cluster_port, seconds=whole, interval=0.05
                ),
            ]
            for stream in streams:
                stream.more(20)
            fresh = testbed.client.load("connect", address, port, seconds=_BEFORE).result()
            flooded = row.service.node_port if row.service else port
            target = Target(family, address, flooded, clients)
            flood = KINDS[row.kind](target)
            before = self._repeated()
            sending = self.send(flood, seconds)
            during = testbed.client.load("connect", address, port, seconds=seconds - 1).result()
            repeated = self._repeated() - before
            sent = int(sending.communicate(timeout=stretched(seconds + 20))[0])
            for stream in streams:
                stream.more(20)
            lost = _failures(streams, held)
            ok = sum(stream.ok for stream in streams)
        wait(self.is_well, "the agent is healthy, and there is room", 90)
        return Outcome(
            str(row),
            family,
            sent,
            seconds,
            fresh.rate,
            during.rate,
            ok + len(held),
            lost,
            during.failures,
            repeated,
        )

    def _used(self, row: Row, family: int) -> tuple[str, int, str, int]:
        """Return to what clients go: address and port from outside, and from a pod."""
        if row.service is None:
            address, port = self.testbed.lab.pods[1].address(family), SLICE_PORTS[0]["port"]
            return address, port, address, port
        of = WEB if row.service is EMPTY else row.service
        return self.testbed.node.address(family), of.node_port, of.vip(family), 80

    def _repeated(self) -> int:
        """Return how many SYNs the client's machine has sent again."""
        shown = self.testbed.client.run(["nstat", "-asz", "TcpExtTCPSynRetrans"]).stdout
        return int(shown.splitlines()[-1].split()[1])

    def is_well(self) -> bool:
        """True if the agent is healthy and names no full map."""
        agent, carries = self.operator.status()
        return agent == "healthy" and "full" not in carries

    def send(self, flood: Flood, seconds: float) -> subprocess.Popen[bytes]:
        """Start to flood from the client's machine."""
        client, node = self.testbed.lab.client, self.testbed.node
        link = Ether(src=client.uplink.mac, dst=node.uplink.mac)
        wanted = Sending(
            client.uplink.name,
            [bytes(link / packet).hex() for packet in flood.packets],
            flood.varied,
            RATE,
            seconds,
        )
        command = [sys.executable, "-m", "tests.floods.sender", json.dumps(wanted._asdict())]
        return client.popen(command, stdout=subprocess.PIPE)


def _failures(streams: list[Load], held: list[OpenConnection]) -> dict[str, int]:
    """Return what failed, by name."""
    failures = Counter[str]()
    for stream in streams:
        failures.update(stream.stop().failures)
    for connection in held:
        connection.socket.settimeout(stretched(2))
        try:
            what = "" if connection.echo(b"still there?") else "wrong"
        except OSError as error:
            what = type(error).__name__
        if what:
            failures[what] += 1
    return failures


@contextmanager
def running_scene() -> Iterator[Scene]:
    """Build a lab of two nodes with agents whose tables are small."""
    with built_testbed(layout="routed") as testbed:
        lab, cluster = testbed
        cluster.options = OPTIONS
        backends = lab.pods[1:]
        cluster.put(
            "flooded",
            *objects(WEB, backends),
            *objects(AFFINE, backends, sessionAffinity="ClientIP"),
            *objects(SINGLE, lab.pods[-1:]),
            *objects(EMPTY, []),
        )
        cluster.start()
        for pods in testbed.node.pod_cidrs.values():
            lab.client.route(str(pods), testbed.node)
        yield Scene(Operator(testbed))
