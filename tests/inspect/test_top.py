"""``bpfsvc top``: the busiest service ports first."""

from __future__ import annotations

from datetime import datetime

import pytest

from bpfsvc.inspect.services.facts import ServicePortFacts
from bpfsvc.inspect.services.look import look
from bpfsvc.inspect.services.ports import collect
from bpfsvc.inspect.services.top import ORDERS, busiest, top_lines
from bpfsvc.inspect.services.traffic import Amounts, Failed, Refused, Traffic
from bpfsvc.inspect.services.view import View, with_rates
from tests.inspect.busy import OPEN, SETTINGS, WEB_BACKENDS, busy_node, connection, slots
from tests.inspect.inspected import frontend, policy
from tests.inspect.pinned import Maps

NAMES = ("chatty", "fat", "new", "old", "refused")


def view() -> View:
    """Five service ports, each of which is the first in another order."""
    maps = Maps(SETTINGS)
    maps.put("settings", {"value": 0}, {"socket_lb": 0, "udp_seconds": 60})
    for service, name in enumerate(NAMES, 1):
        backend = f"10.244.0.{service}:80"
        maps.service(service, name)
        slots(maps, service, 1, [backend])
        vip = f"10.96.0.{service}:80"
        value = {"service": service, "generation": 1, **policy("pod", 0, 1)}
        maps.put("frontends", frontend(vip), value)
        if name == "old":
            for number in range(1000, 1030):
                connection(maps, number, backend, OPEN, service=service)
    ports = {port.name: port for port in collect(maps)}
    amounts = {
        "chatty": Amounts(1.0, 9000.0, 90000.0, 9000.0, 90000.0),
        "fat": Amounts(1.0, 800.0, 9e6, 800.0, 9e6),
        "new": Amounts(250.0, 700.0, 7000.0, 700.0, 7000.0),
        "old": Amounts(0.0, 100.0, 100.0, 100.0, 100.0),
    }
    counted = {key(ports[name]): amount for name, amount in amounts.items()}
    refused = {ports["refused"].service: Refused(3.5, 1.0)}
    failed = {key(ports["fat"]): Failed(2.0, 0.5)}
    return View(list(ports.values()), "off", Traffic(0, counted, refused, failed), 2.0)


def key(port: ServicePortFacts) -> tuple[int, tuple[bytes, int], int]:
    (backend,) = port.backends
    return port.service, backend.endpoint, backend.counters


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("rate", ["new", "chatty", "fat", "old", "refused"]),
        ("connections", ["old", "new", "chatty", "fat", "refused"]),
        ("packets", ["chatty", "fat", "new", "old", "refused"]),
        ("bytes", ["fat", "chatty", "new", "old", "refused"]),
        ("errors", ["refused", "fat", "new", "chatty", "old"]),
    ],
)
def test_the_busiest_comes_first_in_every_order(order: str, first: list[str]) -> None:
    order_of_names = [
        busy.title.split(":")[0].removeprefix("default/") for busy in busiest(view(), order)
    ]
    assert order_of_names == first
    assert order in ORDERS


def test_a_summary_comes_before_a_line_for_each_service_port() -> None:
    lines = [*top_lines(view(), "errors", datetime(2026, 1, 2, 3, 4, 5))]
    summary, empty, head = lines[:2], lines[2], lines[3:5]
    assert summary == [
        "03:04:05  service ports 5  active 30  inactive 0  connections/s 252  failed/s 2.5"
        "  packets/s 21200",
        "  bytes/s 18194200",
    ]
    assert empty == ""
    assert " ".join(head).split() == [
        *("SERVICE", "CPS", "INPPS", "OUTPPS", "INBPS", "OUTBPS"),
        *("REJECTED", "DROPPED", "FAILED", "ACTIVE", "INACTIVE", "BACKENDS"),
    ]
    first = "default/refused:80 TCP IPv4 0 0 0 0 0 3.5 1.0 0 0 0 1"
    assert " ".join(" ".join(lines[5:7]).split()) == first
    assert len({len(line) for line in lines[4::2]}) == 1
    assert max(map(len, lines)) <= 100


def test_connections_that_fail_are_errors_like_those_that_are_refused() -> None:
    shown = [*top_lines(view(), "errors", datetime.now())]
    second = shown[shown.index("default/fat:80 TCP IPv4") + 1].split()
    assert shown[7] == "default/fat:80 TCP IPv4"
    assert second[7] == "2.5"


def test_short_names_have_their_numbers_in_the_same_line() -> None:
    maps = Maps(SETTINGS)
    maps.put("settings", {"value": 0}, {"socket_lb": 0, "udp_seconds": 60})
    now = look(maps, traffic=True)
    assert len([*top_lines(with_rates(now, now), "rate", datetime.now())][-1].split()) == 12


def test_what_sockets_of_pods_may_add_is_not_shown_as_nothing() -> None:
    maps = busy_node(socket_lb=2)
    connection(maps, 1000, WEB_BACKENDS[0], OPEN)
    now = look(maps, traffic=True)
    text = "\n".join(top_lines(with_rates(now, now), "rate", datetime.now()))
    head, _, table = text.partition("\n\n")
    assert "  active 1+  inactive 0+  " in head
    assert "sockets of pods" in head
    names, numbers = (table.splitlines()[at::2] for at in (2, 3))
    rows = zip(names, numbers, strict=True)
    shown = {name.split()[0]: line.split()[-3:] for name, line in rows}
    assert shown == {"default/web:http": ["1+", "0", "2"], "kube-system/dns:53": ["0", "-", "0"]}
