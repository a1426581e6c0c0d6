"""The list of service ports: searched, sorted, and cut into pages by the server."""

from __future__ import annotations

import pytest

from bpfsvc.inspect.services.look import look
from bpfsvc.model.answers import BackendFailures, FailureAnswer
from bpfsvc.page.services import MOST_ROWS, ListQuery, ServiceList
from tests.inspect.busy import OPEN, WEB_BACKENDS, busy_node, connection, count, slots
from tests.inspect.inspected import frontend, policy
from tests.inspect.pinned import Maps

WEB, DNS = "default/web:http", "kube-system/dns:53"


def listed(maps: Maps, failures: FailureAnswer | None = None) -> ServiceList:
    return ServiceList(look(maps, required=False, traffic=True, failures=failures))


def names(services: ServiceList, query: ListQuery) -> list[str]:
    return [row["service"] for row in services.rows(query)["rows"]]


def many(number: int) -> ServiceList:
    """Return a node with so many Services of one backend each."""
    maps = busy_node()
    for service in range(10, 10 + number):
        maps.service(service, f"many-{service:05}", "http")
        slots(maps, service, 1, [f"10.244.7.{service % 250 + 1}:8080"])
        led = {"service": service, "generation": 1} | policy("pod", 0, 1)
        at = f"10.97.{service // 250}.{service % 250 + 1}:80"
        maps.put("frontends", frontend(at), led | policy("node", 0, 1) | policy("other", 0, 1))
    return listed(maps)


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        pytest.param("", [WEB, DNS], id="everything"),
        pytest.param("WEB", [WEB], id="a part of a name, in any case"),
        pytest.param("kube-system dns", [DNS], id="two words, both of which must be there"),
        pytest.param("web dns", [], id="words of different Services"),
        pytest.param("10.96.0.10", [WEB], id="the address of a frontend"),
        pytest.param("10.244.2.7", [WEB], id="the address of a backend"),
        pytest.param("30080", [WEB], id="a node port"),
        pytest.param("<script>", [], id="markup"),
    ],
)
def test_a_search_finds_names_and_addresses(search: str, expected: list[str]) -> None:
    assert names(listed(busy_node()), ListQuery(search=search)) == expected


def test_a_page_has_its_rows_and_says_how_many_there_are() -> None:
    services = many(300)
    answer = services.rows(ListQuery(search="many", first=250, size=50))
    assert (answer["total"], answer["matching"], answer["first"]) == (302, 300, 250)
    shown = [row["service"] for row in answer["rows"]]
    assert shown == [f"default/many-{number:05}:http" for number in range(260, 310)]


def test_no_page_has_more_rows_than_the_limit() -> None:
    assert len(many(300).rows(ListQuery(size=10_000))["rows"]) == MOST_ROWS


def test_a_row_has_the_shares_of_its_backends() -> None:
    maps = busy_node()
    count(maps, 1, 75, 1, 1, 1, 1)
    count(maps, 2, 25, 1, 1, 1, 1)
    (row,) = listed(maps).rows(ListQuery(search="web"))["rows"]
    assert row["shares"] == [
        {"backend": WEB_BACKENDS[0], "connections": 75},
        {"backend": WEB_BACKENDS[1], "connections": 25},
    ]
    assert (row["connections"], row["ready"], row["backends"]) == (100, 2, 2)


def test_attempts_are_no_active_connections() -> None:
    maps = busy_node()
    connection(maps, 1001, WEB_BACKENDS[0], OPEN)
    connection(maps, 1002, WEB_BACKENDS[1], {}, table="new_connections")
    (row,) = listed(maps).rows(ListQuery(search="web"))["rows"]
    assert (row["active"], row["half_open"]) == (1, 1)


def test_only_those_that_fail_are_listed_if_that_is_asked() -> None:
    maps = busy_node()
    count(maps, 1, 9, 1, 1, 1, 1)
    failing = ListQuery(failing=True)
    assert names(listed(maps), failing) == [DNS]  # it has no backend
    failed = BackendFailures(
        counters=2, connections=9, refused=0, unanswered=4, unreachable=0, failing=True
    )
    services = listed(maps, FailureAnswer(seconds=60, backends=[failed]))
    assert names(services, failing) == [WEB, DNS]
    assert services.rows(failing)["rows"][0]["failed_lately"] == 4
    detail = services.detail(WEB, "TCP", "IPv4")
    assert detail
    by_address = {backend["address"]: backend["failed_lately"] for backend in detail["backends"]}
    assert by_address["10.244.2.7"] == {"refused": 0, "unanswered": 4, "unreachable": 0}


def test_what_the_agent_does_not_say_is_not_known() -> None:
    (row,) = listed(busy_node()).rows(ListQuery(search="web"))["rows"]
    assert row["failed_lately"] is None


def test_an_order_by_connections_begins_with_the_busiest() -> None:
    maps = busy_node()
    maps.service(3, "api", "http")
    count(maps, 2, 5, 1, 1, 1, 1)
    slots(maps, 3, 1, ["10.244.2.8:8080"])
    assert names(listed(maps), ListQuery())[0] != WEB
    assert names(listed(maps), ListQuery(sort="connections"))[0] == WEB


def test_a_detail_has_frontends_with_their_treatment() -> None:
    detail = listed(busy_node()).detail(WEB, "TCP", "IPv4")
    assert detail
    words = {known["frontend"]: known["words"] for known in detail["frontends"]}
    assert "restricted" in words["nodeport:30080/TCP"]
    assert listed(busy_node()).detail("default/none:http", "TCP", "IPv4") is None
