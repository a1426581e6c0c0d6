"""A kernel of this process: programs and maps of a node, in namespaces of their own.

They are loaded once, then filled and emptied for one set of objects after another.
"""

from __future__ import annotations

import random
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bpfsvc.base import syscalls
from bpfsvc.base.address import unpack
from bpfsvc.base.errors import KernelError, SystemUnfit
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.loader.installation import install
from bpfsvc.datapath.loader.source import load
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.datapath.maps.service_maps import ServiceMaps
from bpfsvc.explain.answer import Answer, Outcome, answer_for, answer_without_frontend
from bpfsvc.explain.context import QuestionContext
from bpfsvc.explain.node_maps import write_interface, write_node
from bpfsvc.explain.programs import decide, send
from bpfsvc.explain.question import Question
from bpfsvc.explain.reasons import reasons
from bpfsvc.explain.removal import removal_reasons
from bpfsvc.services.cache import Cache
from bpfsvc.services.entries import Frontend
from bpfsvc.services.faults import losers
from bpfsvc.services.planner import Planner
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.scheduling.schedulers import counts_connections

_OF_TRAFFIC = ("connections", "new_connections", "affinities")
"""Maps that packets write to."""

_ENTRIES = 4096


class PrivateKernel:
    """Maps and programs of this process, and the node and objects they were last loaded with."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned
        self._interface = socket.if_nametoindex("lo")
        """The device that packets are said to arrive at."""
        self._tables = ServiceMaps(pinned)
        self._context: QuestionContext
        self._cache: Cache
        self._planner: Planner
        self._owners: dict[Frontend, Applied] = {}

    def load(self, context: QuestionContext, cache: Cache) -> None:
        """Fill the maps for a node and its objects; earlier entries are removed."""
        self._clear()
        planner = Planner(cache, context.config, max_backends=_ENTRIES)
        planner.sync_all(time.monotonic(), self._tables.execute)
        write_node(self._pinned, context)
        self._tables.know_destinations()
        self._tables.set_service_networks(planner.service_networks())
        self._context, self._cache = context, cache
        self._planner = planner
        self._owners = {
            frontend: port for port in planner.applied_state for frontend in port.frontends()
        }

    def answer(self, question: Question) -> Answer:
        """Return the decision of the programs, and why.

        A packet of a client is also sent through the programs; raises :class:`KernelError` if the
        result differs from the decision.
        """
        write_interface(self._pinned, self._context, self._interface, question.interface)
        own = frozenset(self._context.addresses)
        port = random.randrange(1024, 65536)
        decision = decide(self._pinned, question, self._interface, port)
        verdict, backend, source = decision.verdict, decision.backend, b""
        if not question.is_of_node:
            result = send(self._pinned, question, self._interface, own, port)
            self._forget_traffic(decision.frontend)
            if result.verdict != verdict:
                raise KernelError(
                    f"the programs contradict each other about {unpack(question.destination)}:"
                    f" {verdict} and {result.verdict}"
                )
            backend, source = result.destination, result.source
        owner = self._owners.get(decision.frontend)
        if owner is None:
            return answer_without_frontend(verdict, question, self._owners)
        outcome = Outcome(
            verdict, question, decision.frontend, owner, decision.client, own, backend, source
        )
        return answer_for(outcome, tuple(self._reasons(outcome)))

    def _reasons(self, outcome: Outcome) -> Iterator[str]:
        port = outcome.owner.port
        key = port.namespace, port.name
        others = losers(self._planner.ownership, outcome.frontend)
        yield from reasons(outcome, self._cache.lookup(key), self._context.context, others)
        removal = self._planner.schedulings.in_force(key).removal
        yield from removal_reasons(outcome, removal.drain_seconds)

    def _forget_traffic(self, frontend: Frontend) -> None:
        """Remove the entries of a packet, so that the next one is the first of its connection."""
        for name in _OF_TRAFFIC:
            _empty(self._pinned.map(name))
        owner, loads = self._owners.get(frontend), self._pinned.map("backend_loads")
        if owner and counts_connections(owner.frontends()[frontend]):
            for counters in owner.counter_ids:
                loads.update(struct.pack("=I", counters), bytes(loads.value_size))

    def _clear(self) -> None:
        self._tables.clear()
        for name in ("node_addresses", *_OF_TRAFFIC):
            _empty(self._pinned.map(name))


@contextmanager
def private_kernel(cache: Path | None, programs: Path | None = None) -> Iterator[PrivateKernel]:
    """Make a kernel side of its own. This process is in namespaces of its own from then on.

    ``cache``: where compiled programs are kept for the next run; None: nowhere. ``programs``: a
    directory of those that came with bpfsvc.
    """
    try:
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    except OSError as error:
        raise SystemUnfit(
            f"the programs cannot be run in namespaces of their own: {error}",
            "run as root, or privileged in a container",
        ) from error
    with tempfile.TemporaryDirectory(prefix="bpfsvc-explain-") as directory:
        syscalls.mount("bpf", directory, "bpf")
        try:
            root = PinRoot(Path(directory, "node"))
            yield PrivateKernel(install(root, load(_SIZES), _ignore, cache, programs).pinned)
        finally:
            syscalls.unmount(directory)


_SIZES = Sizes(
    max_services=_ENTRIES,
    max_frontends=4 * _ENTRIES,
    max_backends=4 * _ENTRIES,
    max_backend_slots=16 * _ENTRIES,
    max_connections=_ENTRIES,
    max_new_connections=_ENTRIES,
    max_direct_flows=_ENTRIES,
)


def _ignore(_: str) -> None:
    """Drop messages about a former build: there is no former build."""


def _empty(table: Map) -> None:
    keys = [key for key, _ in table.items()]
    if keys:
        table.delete_many(keys)
