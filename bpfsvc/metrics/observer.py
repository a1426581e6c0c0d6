"""The agent's interface to metrics: a method for each event.

Without metrics, each of these calls does nothing. All may come from any thread, and none waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from bpfsvc.base.fast_path import FastPathLevel
from bpfsvc.metrics.kernel_maps import ConnectionTable, KernelMaps
from bpfsvc.model import ModelObject, ObjectKey
from bpfsvc.services.plans.applied import AppliedState
from bpfsvc.services.plans.plan import Plan

BOTH: Collection[int] = (4, 6)
"""Both address families: the programs and the agent handle them together."""


class Trigger(Protocol):
    """An event in the cluster that led to a change of endpoints."""

    @property
    def family(self) -> int:
        """Return 4 or 6."""

    @property
    def seconds(self) -> float:
        """Return when it happened, in Unix seconds."""


class Batch(Protocol):
    """Objects that changed together."""

    @property
    def puts(self) -> Sequence[ModelObject]:
        """Return the objects that are new or have another value."""

    @property
    def gone(self) -> Sequence[ObjectKey]:
        """Return the names of the objects that were removed."""

    @property
    def triggers(self) -> Sequence[Trigger]:
        """Return the causes of the changes of endpoints, as far as the objects say."""


class ApiContact(Protocol):
    """The connection to one resource of the API server; counts are since the start."""

    @property
    def resource(self) -> str:
        """Its name."""

    @property
    def optional(self) -> bool:
        """True if the agent works without it, and the cluster may not have it."""

    @property
    def connected(self) -> bool:
        """True if its objects are followed, so that their state is current."""

    @property
    def last_data(self) -> float:
        """When the server last sent something about it, by ``time.monotonic``; 0 if never."""

    @property
    def lists(self) -> int:
        """Complete lists received."""

    @property
    def watches(self) -> int:
        """Watches opened."""

    @property
    def errors(self) -> int:
        """Lists and watches that failed."""


class Observer:
    """Receives every event of the agent, and here ignores it."""

    # -- objects --

    def queued(self, batch: Batch) -> None:
        """Changes have arrived; call it before they wait for anything."""

    def applied(self, batches: Iterable[Batch]) -> None:
        """Changes passed to :meth:`queued` are in the kernel."""

    def unreadable(self, objects: int) -> None:
        """So many objects or files cannot be read at present."""

    def api_request(self, method: str, host: str, code: str, seconds: float) -> None:
        """The API server answered a request after ``seconds``; code ``<error>``: it did not."""

    def api_server_version(self, version: Mapping[str, str]) -> None:
        """The API server's ``/version`` says this."""

    def snapshot_in_use(self, saved: float | None) -> None:
        """The snapshot saved at ``saved`` (Unix seconds) is in use; None: no longer."""

    # -- the kernel --

    def opened(
        self,
        open_maps: Callable[[], KernelMaps],
        applied_state: AppliedState,
        connections: ConnectionTable,
    ) -> None:
        """The programs are loaded; the applied state holds what was restored, and no more yet.

        ``connections``: what is known of the map of that name, which is too large to be read at
        each scrape.
        """

    def written(self, plan: Plan) -> None:
        """A plan was executed; call it before the applied state contains it."""

    def synced(
        self,
        seconds: float,
        *,
        full: bool,
        families: Collection[int] = BOTH,
        complete: bool = True,
    ) -> None:
        """Services were written to the kernel: all of them (``full``), or those that changed.

        ``complete``: nothing was refused.
        """

    def drift_checked(self, seconds: float, drift: int) -> None:
        """The kernel was compared with what was written; so many entries differed."""

    def refused(self, services: int) -> None:
        """So many Services are not up to date, because a map is full."""

    def no_local_endpoints(self, counts: Mapping[tuple[str, int], int]) -> None:
        """So many service ports require endpoints of this node and have none.

        By traffic policy (``internal``, ``external``) and family;
        see :mod:`bpfsvc.services.rules.no_local_endpoints`.
        """

    def stale_udp_removed(self, seconds: float, removed: Mapping[int, int]) -> None:
        """UDP entries of backends that no longer serve were searched for.

        ``removed``: how many were removed, for each family that was searched.
        """

    def removal_resets(self, connections: int, sockets: int) -> None:
        """Connections to endpoints that left were reset: by packets, and sockets of the node."""

    def quarantines(self, endpoints: int, began: int) -> None:
        """So many endpoints are in quarantine; so many have been put there since the last call."""

    def endpoints_returned(self, endpoints: int) -> None:
        """So many endpoints have come back to a Service that they had left lately."""

    def drops_elsewhere_counted(self) -> None:
        """What other parts of the node drop of the packets of Services is counted from now on."""

    def dropped_elsewhere(self, service_id: int, reason: str, packets: int) -> None:
        """So many packets of a service port were dropped; ``reason``: the kernel's name of it."""

    def attachments(self, interfaces: int, socket_programs: int) -> None:
        """So many interfaces have programs, and so many socket programs are attached."""

    def interfaces_lost(self, interfaces: int) -> None:
        """Programs were missing from so many interfaces."""

    def fast_path_level(self, level: FastPathLevel) -> None:
        """The fast path is used at this level from now on."""

    # -- the servers --

    def pins_lost(self, pins: int) -> None:
        """So many pins had been removed, and are there again."""

    def health_response(self, path: str, status: int) -> None:
        """A request for ``/healthz`` or ``/livez`` was answered."""
