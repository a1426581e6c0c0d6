"""Questions to this node's agent about the objects behind the entries in the kernel."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

from bpfsvc.base import http_client
from bpfsvc.base.address import pack
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.local_socket import connect
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.inspect.reader import PinnedReader, open_pinned
from bpfsvc.inspect.recent_failures import ask_failures
from bpfsvc.inspect.service_names import service_keys
from bpfsvc.model import EndpointSlice, Node, PodPlace, Service
from bpfsvc.model.answers import ChangeRecord, FailureAnswer, OtherVersion, ServiceAnswer, decode
from bpfsvc.model.failures import Failure
from bpfsvc.services.cache import Known
from bpfsvc.services.scheduling.slow_start import Shares

_SECONDS = 10.0
"""For an answer; the agent may have to ask the API server."""

_T = TypeVar("_T")


class NoAnswer(BpfsvcError):
    """The agent does not answer, or cannot."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "ask by addresses, or about --manifests")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """What the agent knows of a Service, and the Node that it works for.

    ``conflicts``: by frontend, a text for each Service that names it too. ``refused``: why the
    kernel does not hold the latest state; empty if it does. ``drain_seconds``: how long connections
    to an endpoint that left stay, if they drain; None if that is not known. ``shares``: the
    shares of new endpoints.
    """

    node: Node
    known: Known
    conflicts: dict[str, list[str]]
    refused: str
    drain_seconds: int | None
    shares: Shares


class AgentAnswers:
    """Asks the agent that has its pins at ``pin_root``, and knows objects by their names."""

    def __init__(self, pin_root: Path) -> None:
        self._pin_root = pin_root

    @property
    def node_name(self) -> str:
        """The node that the agent works for; raises NoAnswer."""
        return self.known("default", "kubernetes").node.name

    def service(self, namespace: str, name: str) -> Service | None:
        """Return a Service, None if there is none; raise NoAnswer."""
        return self.known(namespace, name).known.service

    def known(self, namespace: str, name: str) -> ServiceFacts:
        """Return what the agent knows of a Service, which may be nothing; raise NoAnswer."""
        answer = self._ask("service", namespace, name, ServiceAnswer)
        if answer is None:
            raise NoAnswer("the agent is of another version")
        try:
            objects = answer.objects()
        except ValueError as error:
            raise NoAnswer(str(error)) from error
        services = [item for item in objects if isinstance(item, Service)]
        slices = tuple(item for item in objects if isinstance(item, EndpointSlice))
        return ServiceFacts(
            node=next(item for item in objects if isinstance(item, Node)),
            known=Known(services[0] if services else None, slices),
            conflicts=answer.conflicts,
            refused=answer.refused,
            drain_seconds=answer.drain_seconds,
            shares={pack(address): share for address, share in answer.shares.items()},
        )

    def pod(self, namespace: str, name: str) -> PodPlace | None:
        """Return where a Pod is, None if there is none; raise NoAnswer."""
        return self._ask("pod", namespace, name, PodPlace)

    def services(self) -> list[str]:
        """Return the names of all Services in the kernel, none if they cannot be read."""
        try:
            with open_pinned(PinRoot(self._pin_root)) as pinned:
                return ["/".join(key) for key in service_keys(PinnedReader(pinned))]
        except BpfsvcError:
            return []

    def history(self, namespace: str, name: str) -> list[ChangeRecord]:
        """Return the changes of a Service, of all if the name is empty, the oldest first.

        Raises NoAnswer.
        """
        records = self._ask("history", namespace, name, list[ChangeRecord])
        if records is None:
            raise NoAnswer("the agent is of another version, and remembers no changes")
        return records

    def failures(self) -> FailureAnswer | None:
        """Return what failed lately on the node; None if the agent cannot tell."""
        return ask_failures(self._pin_root)

    def failed(self, namespace: str, name: str) -> list[Failure]:
        """Return records of connections that failed, likewise; several may be of one kind."""
        records = self._ask("failed", namespace, name, list[Failure])
        if records is None:
            raise NoAnswer("the agent is of another version, and remembers no failures")
        return records

    def _ask(self, what: str, namespace: str, name: str, kind: type[_T]) -> _T | None:
        query = urlencode({"namespace": namespace, "name": name})
        try:
            with connect(self._pin_root, _SECONDS) as client:
                answer = http_client.get(client, f"/{what}?{query}")
        except TimeoutError as error:
            raise NoAnswer(f"the agent does not answer within {_SECONDS:.0f} s") from error
        except OSError as error:
            raise NoAnswer(f"the agent does not answer: {error}") from error
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise NoAnswer(f"the agent cannot answer: {_error(answer.body)}")
        try:
            return decode(answer.body, kind)
        except OtherVersion as error:
            raise NoAnswer(str(error)) from error


def _error(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
