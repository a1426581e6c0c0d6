"""What tests of calls of the node's own sockets share: a lab, and a look into the node's maps.

A test that reads what the agent takes, or that changes what the agent would put right, stops the
agent meanwhile.
"""

from __future__ import annotations

import itertools
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.objects import Object, port
from bpfsvc.devtools.lab.patience import stretched, wait
from tests.lab.known_pods import make_known, opened
from tests.lab.test_quarantine import SICK
from tests.lab.test_traffic_node_sockets import PAIRS
from tests.lab.testbed import ONE, Named, Testbed, built_testbed, objects

COUNTED = Named("counted", 72)
"""A Service whose scheduler compares numbers of connections."""

BACK = Named("back", 74)
BACK_PORT = 9080
"""A Service of the second pod, at a port where a test listens itself."""

TRIAL = 2


@contextmanager
def node_calls_testbed() -> Iterator[Testbed]:
    """Build a lab whose pods are known; the second and third pod are the backends of ``SICK``."""
    with built_testbed(layout="routed", holds_pods=True) as testbed:
        pods = testbed.lab.pods
        compared = {"bpfsvc.io/scheduler": "lc"}
        every = [
            *(objects(named, [pod]) for named, pod in zip(ONE, pods, strict=True)),
            *(objects(pair, pods[2:4]) for pair in PAIRS),
            objects(BACK, pods[1:2], [port(BACK_PORT, "web")]),
            objects(COUNTED, pods[2:3], annotations=compared),
        ]
        testbed.cluster.put("services", *itertools.chain.from_iterable(every))
        testbed.cluster.put("sick", *sick(testbed))
        testbed.cluster.start()
        make_known(testbed)
        yield testbed


def sick(testbed: Testbed, rule: str = "1 failures/60s for 1s") -> list[Object]:
    said = {"bpfsvc.io/quarantine": rule} if rule else {}
    return objects(SICK, testbed.lab.pods[1:3], annotations=said)


def forget_quarantine(testbed: Testbed) -> None:
    """Have all backends be well, as far as the agent knows."""
    testbed.cluster.apply("sick", *sick(testbed, ""))
    testbed.cluster.apply("sick", *sick(testbed))


@contextmanager
def stopped_agent(testbed: Testbed) -> Iterator[Pinned]:
    """Stop the agent of the node, which may continue at the end, and open its maps."""
    agent = testbed.agent.process
    agent.send_signal(signal.SIGSTOP)
    try:
        with opened(testbed.node) as pinned:
            yield pinned
    finally:
        agent.send_signal(signal.SIGCONT)


@contextmanager
def changed_settings(pinned: Pinned, **fields: int) -> Iterator[None]:
    """Have the programs of a node find other settings than those of its agent."""
    table, record = pinned.map("settings"), pinned.layout.maps["settings"].value
    before = table.lookup(bytes(4)) or b""
    table.update(bytes(4), record.pack(record.unpack(before) | fields))
    try:
        yield
    finally:
        table.update(bytes(4), before)


@contextmanager
def no_storage(namespace: Namespace) -> Iterator[None]:
    """Have the kernel refuse storage to all sockets of a namespace, as without memory."""
    before = namespace.sysctl("net.core.optmem_max")
    namespace.sysctl("net.core.optmem_max", 0)
    try:
        yield
    finally:
        namespace.sysctl("net.core.optmem_max", before)


def stream(
    namespace: Namespace, family: int, protocol: int = 0, *, source: tuple[str, int] | None = None
) -> socket.socket:
    """Return a socket for a connection; ``source``: what it is bound to."""
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    made = namespace.socket(domain, socket.SOCK_STREAM, protocol)
    made.settimeout(stretched(2))
    if source:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(source)
    return made


def answering(made: socket.socket) -> str:
    """Return the name of the pod that a socket is connected to."""
    made.sendall(b"who\n")
    return made.recv(1 << 16).split(b'"')[3].decode()


def rows(pinned: Pinned, name: str) -> list[Mapping[str, Any]]:
    """Return the values of a map."""
    record = pinned.layout.maps[name].value
    return [record.unpack(value) for _, value in pinned.map(name).items() if any(value)]


def counted(pinned: Pinned) -> tuple[int, int]:
    """Return for how many TCP and UDP sockets the loads of all backends count."""
    sockets = sum(row["sockets"] for row in rows(pinned, "backend_loads"))
    return sockets & 0xFFFFFFFF, sockets >> 32


def outcomes(pinned: Pinned) -> tuple[int, int]:
    """Return how many attempts have failed and succeeded that no agent has taken yet."""
    taken = rows(pinned, "backend_outcomes")
    return sum(row["failures"] for row in taken), sum(row["successes"] for row in taken)


def forget_outcomes(pinned: Pinned) -> None:
    table = pinned.map("backend_outcomes")
    table.delete_many([key for key, _ in table.items()])


class Trial:
    """A backend on trial, and which connection tries it."""

    def __init__(self, pinned: Pinned, key: bytes) -> None:
        self._table, self._key = pinned.map("quarantined"), key
        self._record = pinned.layout.maps["quarantined"].value

    @property
    def tried(self) -> int:
        return int(self._record.unpack(self._table.lookup(self._key) or b"")["tried"])

    def try_now(self, *, free: bool = False) -> None:
        """Have another connection try the backend at present, or none."""
        tried = 0 if free else time.monotonic_ns()
        self._table.update(self._key, self._record.pack({"state": TRIAL, "tried": tried}))


def await_trial(pinned: Pinned) -> Trial:
    """Wait until the agent gives a backend a trial, and return that trial."""
    table, record = pinned.map("quarantined"), pinned.layout.maps["quarantined"].value

    def on_trial() -> list[bytes]:
        return [key for key, value in table.items() if record.unpack(value)["state"] == TRIAL]

    wait(lambda: len(on_trial()) == 1, "a backend is on trial")
    (key,) = on_trial()
    return Trial(pinned, key)
