"""Records about clients of Services: which may connect, and which backend each one keeps."""

from __future__ import annotations

from bpfsvc.base.address import endpoint_text, unpack
from bpfsvc.base.networks import Network, network_text
from bpfsvc.inspect.fields import address_text, chooser
from bpfsvc.inspect.generic import extras
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row
from bpfsvc.inspect.service_names import ServiceNames

RANGE = ("prefix", "service", "network")
NETWORK = ("prefix", "network")
WHOLE_ADDRESS = ("prefix", "address")
CLIENT = ("service", "client")
AFFINITY = ("backend", "port", "seen")
POSITION = ("service", "generation", "address", "port")

SERVICE_BITS = 32
"""Bits of the service id that comes before the network in a key of source_ranges."""


def source_ranges(reader: Reader) -> Records:
    """Return the networks whose clients may use restricted frontends."""
    layout = reader.layout.maps["source_ranges"]
    key = chooser(layout.key, RANGE)
    names = ServiceNames(reader)
    rows: list[Row] = []
    for raw_key, _ in reader.entries("source_ranges"):
        bits, service, network = key(raw_key)
        rows.append((names[service], network_text(Network(network, bits - SERVICE_BITS))))
    return Records("source_ranges", ("service", "network"), sorted(rows))


def service_networks(reader: Reader) -> Records:
    """Return the networks that cluster IPs are taken from."""
    key = chooser(reader.layout.maps["service_networks"].key, NETWORK)
    found = (key(raw_key)[::-1] for raw_key, _ in reader.entries("service_networks"))
    rows: list[Row] = [(network_text(Network(*network)),) for network in sorted(found)]
    return Records("service_networks", ("network",), rows)


def echo_addresses(reader: Reader) -> Records:
    """Return the addresses that answer pings, and how many service ports ask for that."""
    layout = reader.layout.maps["echo_addresses"]
    key, value = chooser(layout.key, WHOLE_ADDRESS), chooser(layout.value, ("value",))
    found = ((key(raw_key)[1], value(raw)[0]) for raw_key, raw in reader.entries("echo_addresses"))
    rows: list[Row] = [(address_text(address), count) for address, count in sorted(found)]
    return Records("echo_addresses", ("address", "service_ports"), rows)


def affinities(reader: Reader, now: int) -> Records:
    """Return the last backend of each client. ``now`` is CLOCK_MONOTONIC in ns.

    ``age`` is in seconds. The frontend has the age after which it is no longer used.
    """
    layout = reader.layout.maps["affinities"]
    key, value = chooser(layout.key, CLIENT), chooser(layout.value, AFFINITY)
    more = extras(layout, CLIENT, AFFINITY)
    names = ServiceNames(reader)
    rows: list[Row] = []
    for raw_key, raw in reader.entries("affinities"):
        service, client = key(raw_key)
        address, port, seen = value(raw)
        age = round(max(0, now - seen) / 1e9, 1)
        row: Row = (names[service], unpack(client), endpoint_text(address, port), age)
        rows.append(row + more.values(raw_key, raw))
    columns = ("service", "client", "backend", "age", *more.columns)
    return Records("affinities", columns, sorted(rows), frozenset({"age"}))


def positions(reader: Reader) -> Records:
    """Return the slots of the backends of service ports with affinity."""
    layout = reader.layout.maps["positions"]
    key, slots = chooser(layout.key, POSITION), chooser(layout.value, ("slots",))
    names = ServiceNames(reader)
    rows: list[Row] = []
    for raw_key, raw in reader.entries("positions"):
        service, generation, address, port = key(raw_key)
        numbers = memoryview(slots(raw)[0]).cast("I")
        shown = tuple(dict.fromkeys(map(str, numbers)))
        rows.append((names[service], endpoint_text(address, port), generation, shown))
    return Records("positions", ("service", "backend", "generation", "slots"), sorted(rows))
