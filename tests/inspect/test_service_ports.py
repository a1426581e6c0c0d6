"""Service ports put together from the maps: states of backends, and connections counted."""

from __future__ import annotations

import pytest

from bpfsvc.base.errors import KernelError
from bpfsvc.inspect.services.facts import ServicePortFacts
from bpfsvc.inspect.services.ports import collect
from bpfsvc.inspect.services.view import words
from tests.inspect.busy import (
    CLOSING,
    DNS_VIP,
    GONE,
    NODE_PORT,
    OPEN,
    WEB_BACKENDS,
    busy_node,
    connection,
    slots,
)
from tests.inspect.inspected import frontend, policy
from tests.inspect.pinned import EGRESS, FIELDS, INGRESS, Maps

CLIENT = "10.244.1.7:1000"


def web(maps: Maps) -> ServicePortFacts:
    return next(port for port in collect(maps) if port.name == "web")


def states(port: ServicePortFacts) -> dict[str, tuple[str, int, int]]:
    return {
        backend.text: (backend.state, backend.active, backend.inactive) for backend in port.backends
    }


def test_a_service_port_has_frontends_backends_and_what_is_special_about_them() -> None:
    dns, port = sorted(collect(busy_node()), key=lambda port: port.name)
    assert (port.text, port.protocol, port.scheduler) == ("default/web:http", "TCP", "random")
    assert (port.affinity_seconds, port.source_ranges) == (60, ("10.0.0.0/8",))
    assert {frontend.text: words(frontend) for frontend in port.frontends} == {
        "10.96.0.10:80/TCP": ("masquerade=node",),
        "nodeport:30080/TCP": ("restricted", "masquerade=node", "local=other"),
    }
    assert [(backend.text, backend.local, backend.clients) for backend in port.backends] == [
        (WEB_BACKENDS[0], True, ("pod", "node", "other")),
        (WEB_BACKENDS[1], False, ("pod", "node", "other")),
    ]
    assert (dns.text, dns.backends) == ("kube-system/dns:53", ())
    assert [words(frontend) for frontend in dns.frontends] == [("reject",)]


@pytest.mark.parametrize(
    ("protocol", "state", "counts"),
    [
        pytest.param(6, {}, (0, 0), id="TCP that is being opened is neither"),
        pytest.param(6, OPEN, (1, 0), id="open TCP is active"),
        pytest.param(6, CLOSING, (0, 1), id="half-closed TCP is inactive"),
        pytest.param(6, OPEN | {"reset": 1}, (0, 1), id="TCP that was reset is inactive"),
        pytest.param(6, OPEN | {"reset": 2}, (1, 0), id="a doubted reset changes nothing"),
        pytest.param(17, OPEN, (0, 1), id="UDP is inactive"),
        pytest.param(132, {}, (0, 1), id="SCTP is inactive until it is answered"),
        pytest.param(132, OPEN, (1, 0), id="then it is active"),
    ],
)
def test_connections_are_active_or_inactive(
    protocol: int, state: dict[str, int], counts: tuple[int, int]
) -> None:
    maps = busy_node()
    connection(maps, 1000, WEB_BACKENDS[1], state, protocol=protocol)
    assert states(web(maps)) == {
        WEB_BACKENDS[0]: ("ready", 0, 0),
        WEB_BACKENDS[1]: ("ready", *counts),
    }
    attempts = [backend.half_open for backend in web(maps).backends]
    assert attempts == [0, int(protocol == 6 and not state)]


def test_each_connection_counts_once_in_whichever_map_it_is() -> None:
    """The two entries around the wire do not count, nor an entry that is moving, twice."""
    maps = busy_node()
    for number, table in ((1000, "new_connections"), (1001, "connections")):
        connection(maps, number, WEB_BACKENDS[0], OPEN, table=table)
    connection(maps, 1000, WEB_BACKENDS[0], OPEN)
    around, direct = (("10.0.0.1:20000", WEB_BACKENDS[0]), ("10.244.1.7:1999", WEB_BACKENDS[0]))
    maps.entry("connections", EGRESS, (CLIENT, WEB_BACKENDS[0]), around, service=1, **OPEN)
    maps.entry("connections", INGRESS, (CLIENT, WEB_BACKENDS[0]), direct, **OPEN)
    assert states(web(maps))[WEB_BACKENDS[0]] == ("ready", 2, 0)


def test_a_former_backend_drains_as_long_as_it_has_connections() -> None:
    maps = busy_node()
    connection(maps, 1000, GONE, OPEN)
    connection(maps, 1001, GONE, CLOSING)
    last = web(maps).backends[-1]
    assert (last.text, last.state, last.active, last.inactive) == (GONE, "draining", 1, 1)
    assert (last.local, last.clients, last.counters) == (None, (), 0)


def test_connections_of_a_deleted_service_keep_its_number() -> None:
    maps = busy_node()
    connection(maps, 1000, GONE, OPEN, service=7)
    deleted = collect(maps)[-1]
    assert (deleted.text, deleted.frontends, deleted.scheduler) == ("#7", (), "")
    assert states(deleted) == {GONE: ("draining", 1, 0)}


def test_backends_that_no_frontend_leads_to_are_unused_or_drain() -> None:
    maps = busy_node()
    maps.service(3, "shadowed")
    slots(maps, 3, 5, ["10.244.3.3:80", "10.244.3.4:80"])
    connection(maps, 1000, "10.244.3.4:80", OPEN, service=3)
    (port,) = (port for port in collect(maps) if port.name == "shadowed")
    assert states(port) == {
        "10.244.3.3:80": ("unused", 0, 0),
        "10.244.3.4:80": ("draining", 1, 0),
    }


def test_far_backends_are_ready_where_connections_spill_over_to_them() -> None:
    maps = busy_node()
    maps.service(3, "zoned")
    slots(maps, 3, 5, ["10.244.3.3:80", "10.244.3.4:80", "10.244.3.3:80"], local="10.244.3.3:80")
    policies = policy("pod", 2, 1) | policy("node", 2, 1) | policy("other", 2, 1)
    spilling = {"pod.spills": 1, "node.spills": 1, "counted": 1}
    near = {"service": 3, "generation": 5, **policies, **spilling}
    maps.put("frontends", frontend("10.96.0.30:80"), near)
    entry = {"first": 0, "size": 2, "overload": 1500}
    maps.put("spills", {"service": 3, "generation": 5}, entry)
    maps.put("backend_loads", {"value": 2}, {"sockets": 4})
    (port,) = (port for port in collect(maps) if port.name == "zoned")
    assert port.zone_overload == "1.5"
    assert [(backend.text, backend.state, backend.clients) for backend in port.backends] == [
        ("10.244.3.3:80", "ready", ("pod", "node", "other")),
        ("10.244.3.4:80", "ready", ("pod", "node")),
    ]
    # All connections are counted, by the same counters as with a scheduler that compares them.
    assert port.partial == ()
    (web_port,) = (port for port in collect(maps) if port.name == "web")
    assert web_port.zone_overload == ""


def test_slots_of_an_older_generation_are_no_backends() -> None:
    maps = busy_node()
    slots(maps, 1, 3, [GONE])
    assert GONE not in states(web(maps))


def test_a_generation_that_is_written_while_the_maps_are_read_is_looked_up() -> None:
    class Flipping(Maps):
        """Has another generation when the frontends are read than when the backends were."""

        def entries(self, name: str):  # type: ignore[no-untyped-def]
            items = list(super().entries(name))
            if name == "backends":
                slots(self, 1, 10, [GONE])
                flipped = {"service": 1, "generation": 10} | policy("pod", 0, 1)
                self.put("frontends", frontend(NODE_PORT), flipped)
                self.put("frontends", frontend("10.96.0.10:80"), flipped)
            return iter(items)

    maps = Flipping()
    maps.service(1, "web", "http")
    slots(maps, 1, 9, list(WEB_BACKENDS))
    assert states(web(maps)) == {GONE: ("ready", 0, 0)}


def test_maps_of_a_build_without_a_needed_field_are_named() -> None:
    kind, key, value = FIELDS["backends"]
    shorter = tuple(field for field in value if field[0] != "counters")
    with pytest.raises(KernelError, match="map backends of build test lacks"):
        collect(Maps({"backends": (kind, key, shorter)}))


def test_the_frontends_of_a_service_port_without_name_are_left_to_the_dump() -> None:
    maps = busy_node()
    maps.put("frontends", frontend("10.96.0.77:1"), {"service": 8, **policy("pod", reject=1)})
    assert {port.text for port in collect(maps)} == {"default/web:http", "kube-system/dns:53"}
    assert DNS_VIP in {frontend.text.partition("/")[0] for frontend in collect(maps)[1].frontends}


def test_maps_of_an_earlier_build_are_read_without_its_successors_fields() -> None:
    kind, key, value = FIELDS["frontends"]
    later = ("schedule", "echo", "removal", "watched", "counted")
    older = tuple(
        field for field in value if field[0] not in later and field[0].partition(".")[2] != "spills"
    )
    maps = busy_node(changes={"frontends": (kind, key, older)})
    port = web(maps)
    assert (port.scheduler, port.said["on_removal"], port.zone_overload) == ("random", "keep", "")
    assert {backend.state for backend in port.backends} == {"ready"}
