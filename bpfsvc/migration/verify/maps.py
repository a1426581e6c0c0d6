"""bpfsvc's decisions, from the entries of the maps of Services."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from bpfsvc.base.networks import Network, network_text
from bpfsvc.inspect.entries import EntryReader
from bpfsvc.inspect.fields import chooser
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.service_names import ServiceNames
from bpfsvc.migration.decisions import Decision, Decisions, Treatment, action_of, merged_networks
from bpfsvc.migration.verify.comparison import MISSING
from bpfsvc.services.entries import CLIENTS, Frontend, Place, Policy
from bpfsvc.services.plans.registry import BACKENDS, FRONTENDS, SOURCE_RANGES, FrontendEntry

_Slots = Mapping[tuple[int, int, int], Place]
"""The backend of each service id, generation and slot."""


def read_maps(reader: Reader) -> Decisions:
    """Return the decisions that are in force.

    The entries that refuse the other ports of a cluster IP are left out.
    """
    entries, names = EntryReader(reader), ServiceNames(reader)
    slots = {entry[:3]: (entry.address, entry.port) for entry in entries.read(BACKENDS)}
    ranges: dict[int, list[Network]] = defaultdict(list)
    for service_id, network in entries.read(SOURCE_RANGES):
        ranges[service_id].append(network)
    decisions = {
        entry.frontend: _decision(entry, names[entry.service_id], slots, ranges[entry.service_id])
        for entry in entries.read(FRONTENDS)
        if entry.frontend != Frontend.rest(entry.frontend.address)
    }
    return Decisions(decisions, _nodeport_addresses(reader))


def _decision(entry: FrontendEntry, service: str, slots: _Slots, ranges: list[Network]) -> Decision:
    """Return the decision of one entry; ``ranges``: the networks of its service port."""
    policies = entry.policies

    def treatment(policy: Policy) -> Treatment:
        used = range(policy.first, policy.first + policy.size)
        keys = ((entry.service_id, entry.generation, slot) for slot in used)
        return Treatment(action_of(policy), frozenset(slots.get(key, MISSING) for key in keys))

    return Decision(
        service,
        dict(zip(CLIENTS, map(treatment, policies.by_class), strict=True)),
        policies.affinity_seconds,
        merged_networks(map(network_text, ranges if policies.restricted else ())),
    )


def _nodeport_addresses(reader: Reader) -> frozenset[bytes]:
    layout = reader.layout.maps["node_addresses"]
    address, accepts = chooser(layout.key, ("address",)), chooser(layout.value, ("nodeports",))
    entries = reader.entries("node_addresses")
    return frozenset(address(key)[0] for key, value in entries if accepts(value)[0])
