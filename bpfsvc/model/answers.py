"""What an agent answers to a command of its own node: the objects that it works with.

Both ends are of the same node, but not always of the same version: ``shape`` says what the objects
mean, and other fields than known ones are ignored.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import msgspec

from bpfsvc.model.archive import SHAPE, unpack_objects
from bpfsvc.model.values import ModelObject

_T = TypeVar("_T")


class OtherVersion(ValueError):
    """The answer is of a version with other fields."""


class ServiceAnswer(msgspec.Struct, kw_only=True):
    """What the agent knows of a Service.

    * ``archived``: the Node, and the Service and its slices if there are any.
    * ``conflicts``: by frontend, a text for each Service that names it too.
    * ``refused``: why the kernel does not hold the latest state; empty if it does.
    * ``drain_seconds``: how long connections to an endpoint that left stay, if they drain; None if
      the agent does not know of that.
    * ``shares``: by address, the shares of new endpoints
      (:mod:`bpfsvc.services.scheduling.slow_start`).
    """

    shape: str = SHAPE
    archived: bytes
    conflicts: dict[str, list[str]] = {}
    refused: str = ""
    drain_seconds: int | None = None
    shares: dict[str, int] = {}

    def objects(self) -> list[ModelObject]:
        """Return the objects; raise :class:`OtherVersion` if they cannot be read here."""
        if self.shape != SHAPE:
            raise OtherVersion("the agent is of another version")
        return unpack_objects(self.archived)


class PodPlace(NamedTuple):
    """Where a Pod is: its node, empty before that is decided, and its addresses, packed.

    ``on_host_network``: it has no addresses of its own but its node's.
    """

    node: str
    addresses: tuple[bytes, ...]
    on_host_network: bool


class Names(msgspec.Struct, omit_defaults=True):
    """Names of what is new and of what is gone; ``more``: how many are left out."""

    added: list[str] = []
    removed: list[str] = []
    more: int = 0


TOGETHER = "together"
"""A change of many Services at once: a start, or a change of the node."""


class ChangeRecord(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A change in the kernel, as the agent remembers it.

    * ``at``: when it was written, in Unix seconds.
    * ``services``: ``namespace/name``; one, unless ``what`` is ``together``.
    * ``what``: ``added``, ``removed``, ``changed``, or ``together``.
    * ``waited_ms``: milliseconds from the event of the API server, or of a file, until it was
      written; None if the clock has led to the change.
    """

    at: float
    services: list[str]
    what: str
    endpoints: Names = msgspec.field(default_factory=Names)
    frontends: Names = msgspec.field(default_factory=Names)
    waited_ms: float | None = None


class BackendFailures(msgspec.Struct, kw_only=True):
    """Connections to a backend that failed lately.

    * ``counters``: the index of its counters, which names the backend.
    * ``connections``: how many were opened meanwhile, as far as that is known.
    * ``failing``: so many of them failed that the backend is at fault, and not one packet.
    """

    counters: int
    connections: int
    refused: int
    unanswered: int
    unreachable: int
    failing: bool


class ServiceRefusals(msgspec.Struct, kw_only=True):
    """First packets and calls to a service port that were refused lately, by reason.

    ``service``: its id; ``counts``: by the fields of ``struct refusals``.
    """

    service: int
    counts: dict[str, int]


class FailureAnswer(msgspec.Struct, kw_only=True):
    """What failed in the last ``seconds``."""

    seconds: int = 0
    backends: list[BackendFailures] = []
    refusals: list[ServiceRefusals] = []


class AgentConfiguration(msgspec.Struct, kw_only=True):
    """How a running agent is configured.

    * ``process``: its id, as the agent sees it. ``arguments``: its command line.
    * ``documents``: both documents with every default, by the group of their API.
    * ``master``: the URL of the API server on its command line.
    """

    version: str
    process: int
    arguments: list[str]
    node_name: str
    documents: dict[str, dict[str, Any]]
    master: str = ""


class AgentState(msgspec.Struct, kw_only=True):
    """How far the agent is.

    * ``lag_seconds``: for how long the oldest change that is not in the kernel has waited.
    * ``repaired``: entries that another program had changed since the agent began.
    """

    lag_seconds: float = 0.0
    repaired: int = 0


encode = msgspec.json.encode


def decode(data: bytes, kind: type[_T]) -> _T:
    """Return an answer of a kind; raise :class:`OtherVersion` for something else."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise OtherVersion(f"the agent's answer cannot be read: {error}") from error
