"""Plays a history on the real programs, and holds each step against the model."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from bpfsvc.agent.flows.established_flows import forget_all
from bpfsvc.base.fast_path import ESTABLISHED, FAST
from bpfsvc.datapath.maps.gc_program import GcProgram
from tests.fuzz.client_packets import send_of_client
from tests.fuzz.connections import INEXACT, SERVER, Connection
from tests.fuzz.controlled_node import ControlledNode
from tests.fuzz.established import Agent
from tests.fuzz.events import (
    Collect,
    Event,
    Foreign,
    IcmpError,
    Packet,
    Pause,
    Reconfigure,
    Unrelated,
    Upgrade,
)
from tests.fuzz.model import Model
from tests.fuzz.network import ALL_PATHS, Network, Paths
from tests.fuzz.other_frames import send_foreign, send_icmp_error, send_unrelated
from tests.fuzz.passages import Different, Passages
from tests.fuzz.server_packets import send_of_server
from tests.fuzz.upgrades import LONGEST_PAUSE, STEP, Upgrades
from tests.fuzz.world import SERVICES
from tests.packets.node import SIZES

HALF_OPEN_PAIRS = SIZES.max_connections // 32
"""So many that are not established are held where nothing is evicted."""
_INGRESS = 1
_NEVER = 1 << 30
"""A second of the clock that no history reaches: the agent is there all the time."""
_TABLES = ("connections", "new_connections")
_KEY = struct.Struct(">16s16sHHBBH")


class Player:
    """One node and one world, and the model that has their connections."""

    def __init__(self, node: ControlledNode, network: Network) -> None:
        self.node = node
        self.network = network
        self._passages = Passages(node, network)
        self.seen = self._passages.seen
        self._gc = GcProgram(node.pinned)
        self._agent = Agent(node.pinned)
        self._upgrades = Upgrades(node, network, self._passages)
        self.begin(0)

    @property
    def runs(self) -> int:
        """How often a program was run."""
        return self._passages.runs

    def begin(self, seed: int, paths: Paths | None = None) -> None:
        """Forget everything, and make the world of a seed, which has paths if none are given."""
        node = self.node
        self.model = Model(seed, self.seen)
        node.controls.set_time(self.model.now)
        node.controls.set_seed(seed)
        self._upgrades.begin()
        self._gc = GcProgram(node.pinned)
        node.reset()
        node.pinned.map("masquerade_turns").update(bytes(4), bytes(8))
        # In some worlds no connection that is not established has room beside the others.
        self._held = HALF_OPEN_PAIRS if seed % 4 == 0 else 0
        node.half_open(self._held)
        node.service_networks("10.96.0.0/16", "fd96::/112")
        self.network.write()
        self._passages.begin()
        self._agent.begin()
        self._is_counted = True
        self._paths = Paths()
        self._use(paths or paths_of(seed))
        for number in range(SERVICES):
            self._program(number)

    def play(self, events: Iterable[Event]) -> None:
        """Play events; raise :class:`Different`."""
        for event in events:
            self.step(event)

    def step(self, event: Event) -> None:
        """Play one event."""
        model = self.model
        if isinstance(event, Packet):
            self._packet(event)
        elif isinstance(event, IcmpError):
            send_icmp_error(model, self._passages, event)
        elif isinstance(event, Foreign):
            send_foreign(model, self._passages, event)
        elif isinstance(event, Unrelated):
            send_unrelated(self._passages, event)
        elif isinstance(event, Pause):
            self._pause(event)
        elif isinstance(event, Collect):
            self._collect(event)
        elif isinstance(event, Reconfigure):
            if not self._upgrades.phase:
                self._use(ALL_PATHS[event.paths])
        elif isinstance(event, Upgrade):
            self._upgrade(event)
        else:
            model.world.rewrite(event.service, event.number)
            self._program(event.service)
            model.forget_clients()

    def end(self) -> None:
        """Let so much time pass that nothing may be left, and hold the tables against that."""
        while self._upgrades.phase:
            self.step(Upgrade(0))
        for _ in range(3):
            self.step(Pause(172_800_000_000_000))
            self.step(Collect())
        left = self.node.count("connections"), self.node.count("new_connections")
        if any(left):
            raise Different(f"after days of silence there are entries: {left}")
        if not self._is_counted:
            # The agent corrects what it copies while it is counted.
            return
        if self.node.held() != self._held:
            raise Different(f"{self.node.held() - self._held} pairs are counted as half open")
        loads = self.node.pinned.map("backend_loads")
        if any(block.values.strip(b"\0") for block in loads.blocks(loads.max_entries)):
            raise Different("connections are counted that are gone")

    def _packet(self, event: Packet) -> None:
        key = self.model.named(event)
        self.node.controls.set_seed(event.number)
        if event.sender != SERVER:
            send_of_client(self.model, self._passages, key, event)
            return
        connection = self.model.connections.get(key)
        if connection is not None:
            send_of_server(self.model, self._passages, connection, event)

    def _pause(self, event: Pause) -> None:
        """Let time pass; not much while an upgrade goes on."""
        self._pass(min(event.ns, LONGEST_PAUSE) if self._upgrades.phase else event.ns)
        if not self._upgrades.phase:
            self._agent_looks()

    def _pass(self, ns: int) -> None:
        self.model.now += ns
        self.node.controls.set_time(self.model.now)

    def _upgrade(self, event: Upgrade) -> None:
        self._pass(STEP)
        self._upgrades.step(event.number, self.model.now)
        self.model.upgrading = bool(self._upgrades.phase)
        for connection in self.model.connections.values():
            connection.copied()
        if not self.model.upgrading:
            self.seen["upgrades"] += 1
            self._is_counted = False
            self._gc = GcProgram(self.node.pinned)

    def _use(self, paths: Paths) -> None:
        """Have the agent allow these paths."""
        before, self._paths = self._paths, paths
        # Those from outside stay fast until netfilter knows them.
        self._write_settings(fast_outside=FAST in (before.level, paths.level))
        if before.level != ESTABLISHED == paths.level:
            forget_all(self.node.pinned)
        self.network.use_xdp(paths.xdp)

    def _write_settings(self, fast_outside: bool) -> None:
        level, ports = self._paths.level, self.model.ports
        self._fast_outside = fast_outside
        self.node.settings(
            *(ports.start, len(ports)),
            fast_path=level == FAST,
            fast_outside=fast_outside,
            established=level == ESTABLISHED,
            fast_path_second=_NEVER,
        )
        self._passages.use(self._paths, fast_outside)

    def _agent_looks(self) -> None:
        """Have the agent do what it does each second, for the fast path."""
        if self._paths.level != FAST:
            self._write_settings(fast_outside=False)
        if self._paths.level == ESTABLISHED:
            self._agent.look(self.model)

    def _program(self, number: int) -> None:
        """Have the control plane write a Service as it is now."""
        self.seen["writes of the control plane"] += 1
        key, entries = self.model.world.entries(number)
        self.node._execute(key, entries)
        self.model.has_endpoints(
            number,
            {
                (port.protocol, backend.place)
                for port, entry in entries.items()
                for backend in entry.backends
            },
        )

    def _collect(self, event: Collect) -> None:
        """Run the connection GC, unless an upgrade goes on: no agent does that meanwhile."""
        if self._upgrades.phase:
            return
        gc = self._gc
        flags = {"crowded": event.crowded, "early_ports": event.crowded}
        gc.remove_closed(**flags)
        for name in _TABLES:
            gc.remove([key for key, _ in self.node.pinned.map(name).items()], **flags)
        self._passages.runs += 4
        left = {key for name in _TABLES for key, _ in self.node.pinned.map(name).items()}
        for connection in list(self.model.connections.values()):
            self._judge_collected(connection, left, event.crowded)

    def _judge_collected(self, connection: Connection, left: set[bytes], crowded: bool) -> None:
        silent = self.model.now - connection.last_ns()
        lifetime = connection.lifetime(crowded)
        is_there = _entry_key(connection) in left
        if connection.is_certain:
            if silent >= lifetime and is_there:
                raise Different(
                    f"is over for {silent / 1e9:.1f} s and was not removed: {connection}"
                )
            if silent + INEXACT < lifetime and not is_there:
                raise Different(f"was removed, silent for {silent / 1e9:.1f} s: {connection}")
        if is_there:
            connection.unsure = False
        else:
            self.model.remove(connection)
            self.seen["connections collected"] += 1


def paths_of(seed: int) -> Paths:
    """Return the paths of the world of a seed: all meet few ports, and no room, too."""
    return ALL_PATHS[(seed + seed // len(ALL_PATHS)) % len(ALL_PATHS)]


def _entry_key(connection: Connection) -> bytes:
    """Return the key of the entry of the client's packets."""
    return _KEY.pack(
        connection.client[0],
        connection.frontend[0],
        connection.client[1],
        connection.frontend[1],
        connection.protocol,
        _INGRESS,
        0,
    )
