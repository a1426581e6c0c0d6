"""``maps dump --service``: the rows of one Service, in all maps that have such rows."""

from __future__ import annotations

import pytest

from bpfsvc.base.errors import UsageError
from bpfsvc.inspect.maps.of_service import OneService, UnknownService
from tests.inspect.inspected import (
    BACKEND,
    CLIENT,
    NOW,
    VIP,
    frontend,
    policy,
    records,
    web,
)
from tests.inspect.pinned import INGRESS, Maps, place


@pytest.fixture
def maps() -> Maps:
    """Two Services, of which one has rows in many maps."""
    made = Maps()
    web(made)
    made.service(2, "web", "metrics")
    made.service(3, "webb", "http")
    made.put("frontends", frontend(VIP), {"service": 1, "generation": 9, **policy("pod", 0, 2)})
    made.put("frontends", frontend("10.96.0.11:80"), {"service": 3, **policy("pod", reject=1)})
    for text, uses in (("10.244.1.5:8080", 1), (BACKEND, 1), ("10.244.3.3:8080", 1)):
        made.put("endpoints", frontend(text), {"value": uses})
    made.entry("connections", INGRESS, (CLIENT, VIP), (CLIENT, BACKEND), service=1, seen=NOW)
    other = "10.96.0.11:80"
    made.entry("connections", INGRESS, (CLIENT, other), (CLIENT, "10.244.3.3:8080"), service=3)
    client, _ = place(CLIENT)
    for number in (1, 3):
        made.put(
            "source_ranges", {"prefix": 64, "service": number, "network": client}, {"value": 1}
        )
    return made


def dumped(maps: Maps, text: str, *names: str) -> dict[str, list[dict[str, object]]]:
    return {
        dump.name: [dict(row) for row in records(dump)]
        for dump in OneService(text).dump(maps, names)
    }


def test_all_maps_that_have_rows_of_services_are_shown(maps: Maps) -> None:
    dump = dumped(maps, "default/web")
    assert {name: len(rows) for name, rows in dump.items() if rows} == {
        "frontends": 2,
        "services": 2,
        "backends": 2,
        "endpoints": 2,
        "connections": 1,
        "source_ranges": 1,
    }
    assert dump.keys().isdisjoint({"settings", "counters", "interfaces", "sizes"})
    assert dump["frontends"][0]["service"] == "default/web:http"


def test_one_port_of_it_can_be_named(maps: Maps) -> None:
    assert len(dumped(maps, "default/web:metrics", "services")["services"]) == 1
    assert dumped(maps, "default/web:metrics", "backends")["backends"] == []
    assert len(dumped(maps, "default/web:http", "backends")["backends"]) == 2


def test_a_service_may_be_called_by_digits(maps: Maps) -> None:
    maps.service(4, "123", "http")
    for text in ("default/123", "default/123:80", "default/123:http"):
        assert [row["name"] for row in dumped(maps, text, "services")["services"]] == ["123"]


def test_a_service_that_the_kernel_does_not_hold_is_named(maps: Maps) -> None:
    with pytest.raises(UnknownService, match="no Service default/we; did you mean default/web"):
        OneService("default/we").require(maps)
    OneService("default/web").require(maps)


def test_a_map_without_rows_of_services_is_an_error_if_it_is_asked_for(maps: Maps) -> None:
    with pytest.raises(UsageError, match="rows of map settings belong to no Service"):
        dumped(maps, "default/web", "settings")


@pytest.mark.parametrize("text", ["web", "a/b/c", "/web", "default/", "default/web:"])
def test_what_names_no_service_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="does not name a Service"):
        OneService(text)
