"""bpfsvc's decisions, from the records that ``bpfsvc maps dump`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bpfsvc.base.address import address_and_port, pack
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.inspect.maps.dump import dump
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Value
from bpfsvc.migration.decisions import Decision, Decisions, Treatment, merged_networks
from bpfsvc.migration.verify.comparison import MISSING
from bpfsvc.services.entries import NODEPORT_TEXTS, Frontend, Place

_NEEDED = ("frontends", "source_ranges", "node_addresses")
_WILDCARDS = {text: address for address, text in NODEPORT_TEXTS.items()}


def read_maps(reader: Reader) -> Decisions:
    """Return the decisions that are in force."""
    return read_records(dump(reader, _NEEDED))


def read_records(dumped: Iterable[Records]) -> Decisions:
    """Return the decisions of some records.

    The entries that refuse the other ports of a cluster IP are left out.
    """
    tables = {
        records.name: [dict(zip(records.columns, row, strict=True)) for row in records.rows]
        for records in dumped
    }
    ranges: dict[tuple[str, bool], list[str]] = {}
    for row in tables["source_ranges"]:
        network = str(row["network"])
        ranges.setdefault((str(row["service"]), ":" in network), []).append(network)
    decisions: dict[Frontend, Decision] = {}
    for row in tables["frontends"]:
        text, service = str(row["frontend"]), str(row["service"])
        if text.endswith(":*"):
            continue
        frontend = _frontend(text)
        before = decisions.get(frontend, Decision(service, {}))
        treatment = Treatment(str(row["action"]), frozenset(map(_backend, _texts(row, "backends"))))
        is_v6 = text.startswith(("[", "nodeport6:"))
        affinity = row["affinity"]
        assert isinstance(affinity, int)
        decisions[frontend] = Decision(
            service,
            {**before.clients, **dict.fromkeys(_texts(row, "clients"), treatment)},
            affinity,
            merged_networks(ranges.get((service, is_v6), ()) if row["restricted"] else ()),
        )
    accepting = (str(row["address"]) for row in tables["node_addresses"] if row["nodeports"])
    return Decisions(decisions, frozenset(map(pack, accepting)))


def _texts(row: Mapping[str, Value], column: str) -> tuple[str, ...]:
    value = row[column]
    assert isinstance(value, tuple)
    return value


def _frontend(text: str) -> Frontend:
    host_and_port, _, protocol = text.rpartition("/")
    host, _, port = host_and_port.rpartition(":")
    address = _WILDCARDS.get(host) or pack(host.strip("[]"))
    return Frontend(address, int(port), PROTOCOLS[protocol])


def _backend(text: str) -> Place:
    backend = address_and_port(text)
    return (pack(backend[0]), backend[1]) if backend else MISSING
