"""Records about clients of Services: which may connect, and which backend each client keeps."""

from __future__ import annotations

from bpfsvc.base.address import endpoint_text, unpack
from bpfsvc.base.networks import Network, network_text
from bpfsvc.inspect.entries import EntryReader
from bpfsvc.inspect.fields import address_text, chooser
from bpfsvc.inspect.maps.generic import known_entries
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row
from bpfsvc.inspect.service_names import ServiceNames
from bpfsvc.services.plans.registry import ECHO_ADDRESSES, POSITIONS, SOURCE_RANGES

NETWORK = ("prefix", "network")
CLIENT = ("service", "client")
AFFINITY = ("backend", "port", "seen")


def source_ranges(reader: Reader) -> Records:
    """Return the source ranges: networks of clients that may use restricted frontends."""
    names = ServiceNames(reader)
    rows: list[Row] = [
        (names[service], network_text(network))
        for service, network in EntryReader(reader).read(SOURCE_RANGES)
    ]
    return Records("source_ranges", ("service", "network"), sorted(rows))


def service_networks(reader: Reader) -> Records:
    """Return the networks of cluster IPs."""
    key = chooser(reader.layout.maps["service_networks"].key, NETWORK)
    networks = (key(raw_key)[::-1] for raw_key, _ in reader.entries("service_networks"))
    rows: list[Row] = [(network_text(Network(*network)),) for network in sorted(networks)]
    return Records("service_networks", ("network",), rows)


def echo_addresses(reader: Reader) -> Records:
    """Return the addresses that answer pings, each with the number of its service ports."""
    entries = EntryReader(reader).with_uses(ECHO_ADDRESSES)
    rows: list[Row] = [
        (address_text(network.address), count) for (network,), count in sorted(entries)
    ]
    return Records("echo_addresses", ("address", "service_ports"), rows)


def affinities(reader: Reader, now: int) -> Records:
    """Return the last backend of each client. ``now`` is CLOCK_MONOTONIC in ns.

    ``age`` is in seconds. The frontend has the age at which the entry expires.
    """
    more, entries = known_entries(reader, "affinities", CLIENT, AFFINITY)
    names = ServiceNames(reader)
    rows: list[Row] = []
    for (service, client, address, port, seen), cells in entries:
        age = round(max(0, now - seen) / 1e9, 1)
        rows.append((names[service], unpack(client), endpoint_text(address, port), age, *cells))
    columns = ("service", "client", "backend", "age", *more)
    return Records("affinities", columns, sorted(rows), frozenset({"age"}))


def positions(reader: Reader) -> Records:
    """Return the slots of the backends of service ports with affinity."""
    names = ServiceNames(reader)
    rows: list[Row] = [
        (
            names[entry.service_id],
            endpoint_text(entry.address, entry.port),
            entry.generation,
            tuple(dict.fromkeys(map(str, entry.slots))),
        )
        for entry in EntryReader(reader).read(POSITIONS)
    ]
    return Records("positions", ("service", "backend", "generation", "slots"), sorted(rows))
