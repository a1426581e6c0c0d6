"""Upgrades of the agent: another build replaces the active one while packets come.

The connections of the other build have another layout, so they are copied. The steps are those of
``NodeSync.start()`` (``bpfsvc/agent/node/node_sync.py``).
"""

from __future__ import annotations

from enum import IntEnum
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

from bpfsvc.datapath.loader import installation
from bpfsvc.datapath.loader.installation import Installation, migrate
from bpfsvc.datapath.loader.shared_maps import CONNECTIONS
from bpfsvc.datapath.maps.pins import Pinned
from tests.fuzz.controlled_node import ControlledNode
from tests.fuzz.network import Network
from tests.fuzz.passages import Passages, Programs

STEP, LONGEST_PAUSE = 10_000_000, 50_000_000
"""How long a step of an upgrade takes, and how long the pause before the next one is, at most."""


class Phase(IntEnum):
    """What has been done of an upgrade."""

    NOTHING = 0
    COPIED = 1
    """The old programs serve alone."""
    ATTACHING = 2
    """The new ones serve at some interfaces, and call the old ones."""
    ATTACHED = 3
    """They serve at all interfaces, and call the old ones with what may not be copied yet."""
    TAKEN_OVER = 4
    """They serve alone; the connections of the old ones are copied for the last time next."""


_TAKEOVERS = {Phase.ATTACHING: "TAKEOVER_ATTACHING", Phase.ATTACHED: "TAKEOVER_ATTACHED"}


class _Replacement(Installation):
    """Both builds are used again: their pins stay where they are."""

    def put_in_force(self) -> None:
        return

    def _mark_copied(self) -> None:
        return


class Upgrades:
    """Two builds of a node, each of which replaces the other; one is loaded when needed."""

    def __init__(self, node: ControlledNode, network: Network, passages: Passages) -> None:
        self._node, self._network, self._passages = node, network, passages
        self._builds = [node.pinned]
        self._programs = [Programs(node.pinned, network)]
        self.begin()

    def begin(self) -> None:
        """Begin a history, with the first build and no connections of the other one."""
        self.phase = Phase.NOTHING
        self._active = 0
        for pinned in self._builds[1:]:
            _forget(pinned)
        self._node.use(self._builds[0])
        self._passages.attach(self._programs[0])

    def step(self, number: int, now: int) -> None:
        """Do the next step; ``number`` says where the new programs are attached first.

        Each step takes time: states of connections are told apart by their times.
        """
        if len(self._builds) == 1:
            self._builds.append(self._node.load_other())
            self._programs.append(Programs(self._builds[1], self._network))
        old, new = self._builds[self._active], self._builds[1 - self._active]
        clock = SimpleNamespace(monotonic_ns=lambda: now)
        with patch.object(installation, "time", clock):
            if self.phase == Phase.NOTHING:
                migrate(old, new)
                self._made = _Replacement(self._node.root, new, old, fresh=True, copied_at=now)
            elif self.phase == Phase.COPIED:
                self._made.call_replaced()
                self._attach(Random(number))
            elif self.phase == Phase.ATTACHING:
                self._passages.attach(self._programs[1 - self._active])
                self._made.take_over()
            elif self.phase == Phase.ATTACHED:
                self._made.catch_up()
            else:
                self._made.copy_last(old)
                _forget(old)
                self._node.use(new)
                self._active = 1 - self._active
        self.phase = Phase((self.phase + 1) % len(Phase))
        _write_takeover(new, _TAKEOVERS.get(self.phase, "TAKEOVER_NONE"))

    def _attach(self, random: Random) -> None:
        interfaces = self._network.interfaces
        some = random.sample(interfaces, random.randrange(len(interfaces)))
        if some:
            self._passages.attach(self._programs[1 - self._active], some)


def _forget(pinned: Pinned) -> None:
    for name in CONNECTIONS:
        table = pinned.map(name)
        table.delete_many([key for key, _ in table.items()])


def _write_takeover(pinned: Pinned, name: str) -> None:
    settings, record = pinned.map("settings"), pinned.layout.maps["settings"].value
    values = record.unpack(settings.lookup(bytes(4)) or b"")
    settings.update(bytes(4), record.pack({**values, "takeover": pinned.layout.constant(name)}))
