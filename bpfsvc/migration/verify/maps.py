"""What bpfsvc's maps say, from the records that ``bpfsvc maps dump`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bpfsvc.inspect.dump import dump
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Value
from bpfsvc.migration.verify.decisions import Decision, Decisions, Treatment, merged_networks

_NEEDED = ("frontends", "source_ranges", "node_addresses")


def read_maps(reader: Reader) -> Decisions:
    """Return what is in force."""
    return read_records(dump(reader, _NEEDED))


def read_records(dumped: Iterable[Records]) -> Decisions:
    """Return what some records say. What rejects other ports of a cluster IP is left out."""
    tables = {
        each.name: [dict(zip(each.columns, row, strict=True)) for row in each.rows]
        for each in dumped
    }
    sources: dict[tuple[str, bool], list[str]] = {}
    for row in tables["source_ranges"]:
        network = str(row["network"])
        sources.setdefault((str(row["service"]), ":" in network), []).append(network)
    found: dict[str, Decision] = {}
    for row in tables["frontends"]:
        frontend, service = str(row["frontend"]), str(row["service"])
        if frontend.endswith(":*"):
            continue
        met = found.setdefault(frontend, Decision(service, {}))
        treatments = dict.fromkeys(_texts(row, "clients"), _treatment(row))
        restricted = sources.get((service, _is_v6(frontend)), ()) if row["restricted"] else ()
        affinity = row["affinity"]
        assert isinstance(affinity, int)
        found[frontend] = met._replace(
            clients={**met.clients, **treatments},
            affinity=affinity,
            sources=merged_networks(restricted),
        )
    accepting = (row["address"] for row in tables["node_addresses"] if row["nodeports"])
    return Decisions(found, frozenset(map(str, accepting)))


def _treatment(row: Mapping[str, Value]) -> Treatment:
    return Treatment(str(row["action"]), tuple(sorted(set(_texts(row, "backends")))))


def _texts(row: Mapping[str, Value], column: str) -> tuple[str, ...]:
    value = row[column]
    assert isinstance(value, tuple)
    return value


def _is_v6(frontend: str) -> bool:
    return frontend.startswith(("[", "nodeport6:"))
