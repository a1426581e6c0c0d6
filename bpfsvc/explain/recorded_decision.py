"""The decision of the programs, worked out from recorded entries: no kernel, no rights.

It follows ``explain_question()`` (bpf/path/agent/explain.h), which decides on a live node. Which
backend a connection gets is left open where the entries do not decide that.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Mapping
from typing import Any

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, family, pack, unpack
from bpfsvc.base.networks import Network, contains
from bpfsvc.datapath.maps.backend_loads import Load, read_load
from bpfsvc.explain.programs import Decision
from bpfsvc.explain.question import Question
from bpfsvc.explain.recorded_choice import Choosing, hashed
from bpfsvc.inspect.reader import Reader
from bpfsvc.services.entries import Frontend, Place, Policy
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.scheduling.extra import overflow_policy
from bpfsvc.services.scheduling.maps import spills
from bpfsvc.services.scheduling.schedulers import NO_SLOT, Schedule

NOT_CHOSEN: Place = (b"", 0)
"""The backend of a decision that leaves it open."""

_LOOPBACK = pack("127.0.0.1")
_ONLY_KEY = bytes(4)


class RecordedDecision:
    """Decides by the entries of a reader. ``owners``: the service port of each frontend.

    ``replaced``: True if other addresses stand for those of the node: their hashes mean nothing.
    """

    def __init__(
        self, reader: Reader, owners: Mapping[Frontend, Applied], *, replaced: bool = False
    ) -> None:
        self._reader = reader
        self._owners = owners
        self._replaced = replaced
        self._settings = self._values("settings", _ONLY_KEY)

    def __call__(self, question: Question, interface: int, port: int | None = None) -> Decision:
        """Return the decision; ``interface``: the index of the one that the packet arrives at.

        ``port``: the client's, if it is known.
        """
        asked = Frontend(self._normalized(question.destination), question.port, question.protocol)
        asked = self._key_of(asked)
        client = "node" if question.is_of_node else self._client(question.source, interface)
        owner = self._owners.get(asked)
        if owner is None:
            verdict = self._guard(asked.address)
            return Decision(verdict, False, asked, client, NOT_CHOSEN)
        policies = owner.frontends()[asked]
        if policies.restricted and not self._is_allowed(owner, question.source):
            return Decision("drop", True, asked, client, NOT_CHOSEN)
        policy: Policy = getattr(policies, client)
        if not policy.size:
            return Decision("reject" if policy.reject else "drop", False, asked, client, NOT_CHOSEN)
        spilled = policy.spills and self._spills(owner)
        of_choice = (spilled and overflow_policy(owner.extra)) or policy
        number = hashed(Schedule(policies.schedule), question.source, asked.address, port)
        if self._replaced:
            number = None
        keeps = client != "node"
        choosing = Choosing(owner, policies, of_choice, number, keeps, self._load)
        verdict, backend = _chosen(choosing, asked.protocol, reject=policy.reject)
        return Decision(verdict, False, asked, client, backend, spilled)

    def _values(self, name: str, key: bytes) -> dict[str, Any]:
        """Return the fields of an entry, none without it."""
        raw = self._reader.value(name, key)
        return self._reader.layout.maps[name].value.unpack(raw) if raw else {}

    def _normalized(self, address: bytes) -> bytes:
        """Return 127.0.0.1 for all of 127/8, if its entry is for all of them."""
        if family(address) == 6 or not ipaddress.ip_address(unpack(address)).is_loopback:
            return address
        every = self._reader.layout.constant("NODEPORTS_OPEN_LOOPBACK")
        is_for_all = self._values("node_addresses", _LOOPBACK).get("nodeports") == every
        return _LOOPBACK if is_for_all else address

    def _key_of(self, asked: Frontend) -> Frontend:
        """Return the key of the entry for a destination: NodePorts have the wildcard address."""
        if asked in self._owners or not self._values("node_addresses", asked.address).get(
            "nodeports"
        ):
            return asked
        wildcard = {4: ANY_NODE_ADDRESS_V4, 6: ANY_NODE_ADDRESS_V6}[family(asked.address)]
        return asked._replace(address=wildcard)

    def _client(self, source: bytes, interface: int) -> str:
        """Return the class of a client whose packet arrives at an interface."""
        settings = self._settings
        key = interface.to_bytes(4, sys.byteorder)
        if settings.get("detect_interfaces") and self._values("interfaces", key).get("pods"):
            return "pod"
        for version in ("v4", "v6"):
            if settings.get(f"detect_pods_{version}"):
                mask = int.from_bytes(settings[f"pod_mask_{version}"], "big")
                network = int.from_bytes(settings[f"pod_network_{version}"], "big")
                if (int.from_bytes(source, "big") ^ network) & mask == 0:
                    return "pod"
        return "node" if self._reader.value("node_addresses", source) is not None else "other"

    def _guard(self, address: bytes) -> str:
        """Return the verdict on an address and port without a frontend."""
        if Frontend.rest(address) in self._owners:
            return "reject"
        record = self._reader.layout.maps["service_networks"].key
        keys = (record.unpack(key) for key, _ in self._reader.entries("service_networks"))
        networks = (Network(bytes(key["network"]), int(key["prefix"])) for key in keys)
        return "drop" if any(contains(network, address) for network in networks) else "none"

    @staticmethod
    def _is_allowed(owner: Applied, source: bytes) -> bool:
        return any(contains(network, source) for network in owner.ranges)

    def _load(self, counters: int) -> Load:
        raw = self._reader.value("backend_loads", counters.to_bytes(4, sys.byteorder)) or b""
        record = self._reader.layout.maps["backend_loads"].value
        return read_load(raw or bytes(record.size), record).connections

    def _spills(self, owner: Applied) -> bool:
        """True if a new connection overflows to the far endpoints (bpf/path/schedule/spill.h)."""
        for entry in spills(owner):
            loads = [self._load(counters) for counters in entry.counters[: entry.compared]]
            numbers = [load.active + (load.inactive if entry.inactive else 0) for load in loads]
            near = sum(numbers[: entry.near])
            far = sum(numbers) - near
            return far * entry.far_factor < near * entry.near_factor
        return False


def _chosen(choosing: Choosing, protocol: int, *, reject: bool) -> tuple[str, Place]:
    """Return verdict and backend; ``reject``: clients without a backend are told so."""
    slot = choosing.slot()
    if slot == NO_SLOT:
        return "reject" if reject else "drop", NOT_CHOSEN
    first, size = choosing.policy[:2]
    places = [backend.place for backend in choosing.owner.backends()[first : first + size]]
    full = choosing.is_full(protocol)
    if all(full):
        return "reject", min(places)
    if slot is not None and full[slot]:
        slot = choosing.roomiest(protocol)
    if len(set(places)) == 1:
        return "dnat", places[0]
    if slot is None or choosing.policies.affinity_seconds:
        return "dnat", NOT_CHOSEN
    return "dnat", places[slot]
