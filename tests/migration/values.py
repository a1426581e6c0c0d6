"""The values of the tests of migration, from texts."""

from __future__ import annotations

from bpfsvc.base.address import pack, pack_network
from bpfsvc.base.networks import Network, bits_of
from bpfsvc.migration.decisions import Decision, Decisions, Treatment
from bpfsvc.services.entries import Place, frontend_text


def place(text: str) -> Place:
    """Return the place of ``10.0.0.1:80``."""
    address, _, port = text.rpartition(":")
    return pack(address.strip("[]")), int(port)


def network(text: str) -> Network:
    """Return the network of a CIDR."""
    address, mask = pack_network(text)
    return Network(address, bits_of(mask))


def treated(action: str, *backends: str) -> Treatment:
    """Return a treatment, of texts."""
    return Treatment(action, frozenset(map(place, backends)))


def by_text(decisions: Decisions) -> dict[str, Decision]:
    """Return the decisions by the texts of their frontends."""
    return {frontend_text(frontend): decision for frontend, decision in decisions.frontends.items()}
