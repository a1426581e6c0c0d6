"""The API server as a source of objects.

A thread for each resource waits for the server. The source keeps what the threads read until all
objects are there that Services need, and puts these objects into the agent's queue as one batch.
From then on each thread puts its own batches into the queue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from bpfsvc.kube import requests
from bpfsvc.kube.client.connection import ApiConnection
from bpfsvc.kube.connection_status import ConnectionState, ConnectionStatus
from bpfsvc.kube.deltas import Update, batch_of
from bpfsvc.kube.errors import ApiError
from bpfsvc.kube.pacing import Pacing
from bpfsvc.kube.reflector import Reflector
from bpfsvc.kube.resources import ENDPOINTS, SERVICE_CIDRS, SERVICES, node, pods
from bpfsvc.kube.source import Batch, ParseError
from bpfsvc.model import Node, PodPlace

_NEEDED = frozenset({SERVICES.name, ENDPOINTS.name})
"""The first batch waits until these have been listed."""

_CHECK_SECONDS = 0.1
"""How often it is checked, before the first batch, that the Node has been missing for long."""

_BRIEF = 10.0
"""Seconds without a connection that are not reported."""


class ApiServerSource:
    """The objects of a cluster as a node needs them.

    The first batch also waits for this Node to be there with an address, up to ``node_wait``
    seconds from the first answer of the server on, since much depends on who this node is.
    """

    def __init__(
        self,
        connection: ApiConnection,
        node_name: str,
        *,
        with_pods: bool = True,
        node_wait: float = 30.0,
        pacing: Pacing | None = None,
        on_version: Callable[[Mapping[str, str]], None] = lambda _: None,
    ) -> None:
        """Follow the API server of ``connection`` for the Node ``node_name``.

        ``on_version`` is called with the server's ``/version`` when it has answered.
        ``with_pods``: the pods of this node are followed too.
        """
        self._connection = connection
        own = (node(node_name), pods(node_name)) if with_pods else (node(node_name),)
        self._resources = (SERVICES, ENDPOINTS, SERVICE_CIDRS, *own)
        self._node_wait = node_wait
        self._pacing = pacing or Pacing()
        self._on_version = on_version
        self._status = ConnectionStatus(connection.server, self._resources)
        self._problems: dict[str, tuple[ParseError, ...]] = {}
        self._put: Callable[[Batch], None] = lambda _: None
        self._lock = threading.Lock()
        self._pending: list[Update] | None = []
        """What the first batch will hold; ``None`` once it is put."""
        self._missing = set(_NEEDED)
        self._node_is_known = False
        self._node_until: float | None = None

    def connections(self) -> dict[str, ConnectionState]:
        """Return the state of each resource's connection, by its name; any thread may ask."""
        return self._status.states()

    def outage(self) -> str | None:
        """Return which resources are not followed, for longer than a proxy takes to restart."""
        now = time.monotonic()
        lost = [
            state
            for state in self.connections().values()
            if not state.connected and not state.optional and now - state.since > _BRIEF
        ]
        if not lost:
            return None
        seconds = now - min(state.since for state in lost)
        names = ", ".join(state.resource for state in lost)
        reason = lost[0].error or "no answer yet"
        return f"no data of {names} for {seconds:.0f} s: {reason}"

    def find_pod(self, namespace: str, name: str) -> PodPlace | None:
        """Ask the server where a Pod is; raise :class:`ApiError` without an answer."""
        pods = requests.find_pods(self._connection, namespace, name)
        return pods[0] if pods else None

    def follow(self, stop: threading.Event, put: Callable[[Batch], None]) -> None:
        """Put one batch with everything, then one for each change, until ``stop`` is set."""
        self._put = put
        reflectors = [
            Reflector(resource, self._connection, self._status, self._take, stop, self._pacing)
            for resource in self._resources
        ]
        for resource, reflector in zip(self._resources, reflectors, strict=True):
            name = f"watch {resource.name}"
            threading.Thread(target=reflector.run, name=name, daemon=True).start()
        while self._pending is not None and not stop.wait(_CHECK_SECONDS):
            with self._lock:
                self._put_first_if_ready()
        if not stop.is_set():
            threading.Thread(target=self._ask_version, name="api version", daemon=True).start()
        stop.wait()
        for reflector in reflectors:
            reflector.interrupt()

    def _take(self, update: Update) -> None:
        """Put an update, or keep it for the first batch; called by the threads of resources."""
        with self._lock:
            if update.problems is not None:
                self._problems[update.resource] = update.problems
            if self._pending is None:
                self._put(batch_of([update], self._all_problems()))
                return
            self._pending.append(update)
            if update.listed:
                self._missing.discard(update.resource)
                self._node_until = self._node_until or time.monotonic() + self._node_wait
            self._node_is_known |= any(
                isinstance(item, Node) and item.addresses for item in update.puts
            )
            self._put_first_if_ready()

    def _put_first_if_ready(self) -> None:
        """Put the first batch if nothing is missing, or the Node for too long. With the lock."""
        if self._pending is None or self._missing or self._node_until is None:
            return
        if self._node_is_known or time.monotonic() >= self._node_until:
            pending, self._pending = self._pending, None
            self._put(batch_of(pending, self._all_problems()))

    def _all_problems(self) -> tuple[ParseError, ...]:
        return tuple(problem for some in self._problems.values() for problem in some)

    def _ask_version(self) -> None:
        """Ask for the server's version; without an answer there is none."""
        with suppress(ApiError):
            self._on_version(requests.version(self._connection))
