"""The API server as a source of objects.

A thread for each resource waits for what the server says, and all put it into one queue. Whoever
takes the batches waits at its other end: for the first one until nothing is missing that Services
cannot be programmed without, and from then on only for the next change.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from bpfsvc.apiserver import asking
from bpfsvc.apiserver.connection import Connection
from bpfsvc.apiserver.contacts import Contact, Contacts
from bpfsvc.apiserver.pacing import Pacing
from bpfsvc.apiserver.reflector import Reflector
from bpfsvc.apiserver.resources import ENDPOINTS, SERVICE_CIDRS, SERVICES, node, pods
from bpfsvc.apiserver.trouble import ApiError
from bpfsvc.apiserver.updates import Gathering, Update
from bpfsvc.model import Node
from bpfsvc.sources import Batch, Problem

_NEEDED = frozenset({SERVICES.name, ENDPOINTS.name})
"""Nothing is told before these have been listed."""


_BRIEF = 10.0
"""Seconds without contact that nobody needs to know of."""


class ApiServer:
    """The objects of a cluster as a node needs them.

    The first batch also waits for this Node to be there with an address, up to ``node_wait``
    seconds from the first answer of the server on, since much depends on who this node is.
    """

    def __init__(
        self,
        connection: Connection,
        node_name: str,
        *,
        with_pods: bool = True,
        node_wait: float = 30.0,
        pacing: Pacing | None = None,
        on_version: Callable[[Mapping[str, str]], None] = lambda _: None,
    ) -> None:
        """``on_version`` is told what the server says of itself, once it has answered.

        ``with_pods``: whether anybody wants to know about the pods of this node.
        """
        self._connection = connection
        own = (node(node_name), pods(node_name)) if with_pods else (node(node_name),)
        self._resources = (SERVICES, ENDPOINTS, SERVICE_CIDRS, *own)
        self._node_wait = node_wait
        self._pacing = pacing or Pacing()
        self._on_version = on_version
        self._contacts = Contacts(connection.server, self._resources)
        self._updates: queue.SimpleQueue[Update | None] = queue.SimpleQueue()
        self._problems: dict[str, tuple[Problem, ...]] = {}

    def contacts(self) -> dict[str, Contact]:
        """Give the contact over each resource, by its name; any thread may ask."""
        return self._contacts.snapshot()

    def absence(self) -> str | None:
        """Name what is not followed for longer than a restart of the server's proxy takes."""
        now = time.monotonic()
        lost = [
            each
            for each in self.contacts().values()
            if not each.connected and not each.optional and now - each.since > _BRIEF
        ]
        if not lost:
            return None
        seconds = now - min(each.since for each in lost)
        names = ", ".join(each.resource for each in lost)
        reason = lost[0].error or "no answer yet"
        return f"nothing was heard of {names} for {seconds:.0f} s: {reason}"

    def watch(self, stop: threading.Event) -> Iterator[Batch]:
        """Give one batch with everything, then batches of changes, until ``stop`` is set."""
        reflectors = [
            Reflector(each, self._connection, self._contacts, self._updates.put, stop, self._pacing)
            for each in self._resources
        ]
        for each, reflector in zip(self._resources, reflectors, strict=True):
            name = f"watch {each.name}"
            threading.Thread(target=reflector.run, name=name, daemon=True).start()
        closer = (stop, reflectors)
        threading.Thread(target=self._close, args=closer, name="watch end", daemon=True).start()
        first = self._first()
        if first is None:
            return
        threading.Thread(target=self._ask_version, name="api version", daemon=True).start()
        yield first
        del first
        while gathering := self._gather():
            yield gathering.batch(self._all_problems())
            del gathering

    def _first(self) -> Batch | None:
        """Wait for all that the first batch must hold; None if it is over before."""
        gathering = Gathering()
        missing = set(_NEEDED)
        node_is_known = False
        until: float | None = None
        while missing or not (node_is_known or (until is not None and _left(until) <= 0)):
            waiting = None if missing or until is None else _left(until)
            try:
                update = self._updates.get(timeout=waiting)
            except queue.Empty:
                continue
            if update is None:
                return None
            self._note(update)
            gathering.add(update)
            if update.whole:
                missing.discard(update.resource)
                until = until or time.monotonic() + self._node_wait
            node_is_known |= any(isinstance(one, Node) and one.addresses for one in update.puts)
        return gathering.batch(self._all_problems())

    def _gather(self) -> Gathering | None:
        """Wait for one update and take all that have come with it; None at the end."""
        gathering = Gathering()
        update = self._updates.get()
        while True:
            if update is None:
                return None
            self._note(update)
            gathering.add(update)
            try:
                update = self._updates.get_nowait()
            except queue.Empty:
                return gathering

    def _note(self, update: Update) -> None:
        if update.problems is not None:
            self._problems[update.resource] = update.problems

    def _all_problems(self) -> tuple[Problem, ...]:
        return tuple(problem for some in self._problems.values() for problem in some)

    def _ask_version(self) -> None:
        """A courtesy to those who compare versions: without an answer they get none."""
        with suppress(ApiError):
            self._on_version(asking.version(self._connection))

    def _close(self, stop: threading.Event, reflectors: list[Reflector]) -> None:
        stop.wait()
        for reflector in reflectors:
            reflector.interrupt()
        self._updates.put(None)


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())
