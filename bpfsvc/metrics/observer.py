"""What the agent tells of its work, in its own words.

This is also what it speaks to when nobody asks for metrics: then each of these does nothing. All
may be called from any thread, and none of them waits for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from bpfsvc.datapath.pins import Pinned
from bpfsvc.plan import Plan
from bpfsvc.programmed import Ledger
from bpfsvc.sources import Batch

BOTH: Collection[int] = (4, 6)
"""Both families: the programs and the agent serve them together."""


class Contact(Protocol):
    """How it stands with one resource of the API server; what is counted, from the start on."""

    @property
    def resource(self) -> str:
        """Its name."""

    @property
    def optional(self) -> bool:
        """Nothing depends on it; it may be missing for ever."""

    @property
    def connected(self) -> bool:
        """What is known of it is current."""

    @property
    def heard(self) -> float:
        """When the server last said anything of it, by ``time.monotonic``; 0 if never."""

    @property
    def lists(self) -> int:
        """How many complete lists there were."""

    @property
    def watches(self) -> int:
        """How many watches were opened."""

    @property
    def errors(self) -> int:
        """How many lists and watches failed."""


class Observer:
    """Is told everything, and here forgets it."""

    # -- objects --

    def queued(self, batch: Batch) -> None:
        """Note that changes have arrived; to be called before they wait for anything."""

    def applied(self, batches: Iterable[Batch]) -> None:
        """Note that changes told by :meth:`queued` are in the kernel."""

    def unreadable(self, objects: int) -> None:
        """Say how many objects or files cannot be read at present."""

    def contacts(self, ask: Callable[[], Iterable[Contact]]) -> None:
        """Say whom to ask how it stands with the API server, whenever somebody wants to know."""

    def asked(self, method: str, host: str, code: str, seconds: float) -> None:
        """Note a request to the API server, and how long its answer took; ``<error>``: none."""

    def kubernetes(self, version: Mapping[str, str]) -> None:
        """Say what the API server's ``/version`` says."""

    def standing_in(self, saved: float | None) -> None:
        """Say that the last good state is served, saved at ``saved`` (Unix seconds), or no more."""

    # -- the kernel --

    def opened(self, pinned: Pinned, ledger: Ledger, connections: Callable[[], int]) -> None:
        """Say where traffic is counted; what was adopted is in the ledger, nothing else yet.

        ``connections()`` gives the number of entries in the map of that name, which is too large
        to be counted for everyone who asks.
        """

    def written(self, plan: Plan) -> None:
        """Note that a plan was executed; to be called before the ledger knows of it."""

    def synced(
        self, seconds: float, *, full: bool, families: Collection[int] = BOTH, well: bool = True
    ) -> None:
        """Note that Services were brought into the kernel, all (``full``) or those touched.

        ``well``: nothing was refused.
        """

    def reconciled(self, seconds: float, drift: int) -> None:
        """Note that the kernel was compared with what was written, and how many rows differed."""

    def refused(self, services: int) -> None:
        """Say how many Services are not up to date, because a map is full."""

    def no_local(self, counts: Mapping[tuple[str, int], int]) -> None:
        """Say how many service ports keep to endpoints of this node where there are none.

        By traffic policy (``internal``, ``external``) and family; see :mod:`bpfsvc.absence`.
        """

    def stale_udp(self, seconds: float, removed: Mapping[int, int]) -> None:
        """Note that UDP entries of backends that ceased to serve were looked for.

        ``removed`` gives how many there were, for each family that was looked at.
        """

    def attached(self, interfaces: int, socket_programs: int) -> None:
        """Say to how many interfaces programs are attached, and how many serve sockets."""

    def lost(self, interfaces: int) -> None:
        """Note that programs were found to be gone from interfaces."""

    # -- who asks --

    def answered(self, path: str, status: int) -> None:
        """Note an answer of ``/healthz`` or ``/livez``."""
