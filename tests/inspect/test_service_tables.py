"""``bpfsvc services`` as text and as documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from bpfsvc.inspect.policies import SAID
from bpfsvc.inspect.services.documents import write_view_json, write_view_yaml
from bpfsvc.inspect.services.look import look
from bpfsvc.inspect.services.tables import write_view
from bpfsvc.inspect.services.view import View, number_text, view_records, with_rates
from bpfsvc.model.answers import BackendFailures, FailureAnswer
from tests.inspect.busy import (
    CLOSING,
    GONE,
    OPEN,
    WEB_BACKENDS,
    busy_node,
    connect_times,
    connection,
    count,
)
from tests.inspect.pinned import Maps

NOTE = (
    "\nNote: connections of UDP sockets of the node's processes are not in ACTIVE and INACTIVE,"
    " because the kernel has no list of them; so 12+ means at least 12, and - means that none is"
    " known (socket LB: host).\n"
)

TABLE = """\
SERVICE                      SCHEDULER  FLAGS
  FRONTEND                   FLAGS
  -> BACKEND                 STATE      WEIGHT  HALF-OPEN  ACTIVE  INACTIVE  FAILED LATELY
default/web:http TCP IPv4    random     affinity=60s
  nodeport:30080/TCP         restricted masquerade=node local=other
  10.96.0.10:80/TCP          masquerade=node
  -> 10.244.1.5:8080         ready           1          0      12         0  0
  -> 10.244.2.7:8080         ready           1          2       0         0  3 refused, 4 unanswered
  -> 10.244.9.9:8080         draining        0          0       0         1  -
kube-system/dns:53 UDP IPv4  random
  10.96.0.53:53/UDP          reject
"""


def maps() -> Maps:
    made = busy_node()
    for number in range(1000, 1012):
        connection(made, number, WEB_BACKENDS[0], OPEN)
    connection(made, 1100, GONE, CLOSING)
    for number in (1200, 1201):
        connection(made, number, WEB_BACKENDS[1], {})
    made.put("backend_failures", {"value": 2}, {"refused": 2}, {"refused": 1, "unanswered": 4})
    count(made, 1, 120, 1500, 150000, 1400, 9000000)
    connect_times(made, 1, [0, 90, 10, 0], 19_000)
    connect_times(made, 2, [0, 0, 1, 2], 3_000_200)
    made.put(
        "refusals",
        {"value": 2},
        {"rejected__no_endpoints": 2, "dropped__source_range": 1},
        {"rejected__no_endpoints": 3},
    )
    return made


LATELY = FailureAnswer(
    seconds=97,
    backends=[
        BackendFailures(
            counters=2, connections=9, refused=3, unanswered=4, unreachable=0, failing=True
        )
    ],
)
"""What the agent says: the second backend fails."""


def test_a_block_for_each_service_port_lists_frontends_and_backends() -> None:
    assert "".join(write_view(look(maps(), failures=LATELY))) == TABLE + NOTE


def test_without_an_agent_recent_failures_are_not_known() -> None:
    lines = "".join(write_view(look(maps()))).splitlines()
    assert [line.split()[-1] for line in lines if "-> 10." in line] == ["-", "-", "-"]


def test_wide_adds_where_backends_are_and_who_they_are_for() -> None:
    text = "".join(write_view(look(maps()), wide=True))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "-> BACKEND STATE WEIGHT HALF-OPEN ACTIVE INACTIVE FAILED LATELY LOCAL CLIENTS" in lines
    assert "-> 10.244.1.5:8080 ready 1 0 12 0 - yes pod,node,other" in lines
    assert "-> 10.244.9.9:8080 draining 0 0 0 1 - - -" in lines
    assert "default/web:http TCP IPv4 random affinity=60s source-ranges=10.0.0.0/8" in lines


def test_stats_show_what_was_counted_and_nothing_for_former_backends() -> None:
    text = "".join(write_view(look(maps(), traffic=True)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines == [
        "SERVICE CONNS INPKTS OUTPKTS INBYTES OUTBYTES REJECTED DROPPED FAILED"
        " CONNECT MEDIAN CONNECT P95",
        "-> BACKEND",
        "default/web:http TCP IPv4 120 1500 1400 150000 9000000 0 0 7 <0.128ms <0.256ms",
        "-> 10.244.1.5:8080 120 1500 1400 150000 9000000 0 <0.128ms <0.256ms",
        "-> 10.244.2.7:8080 0 0 0 0 0 7 >0.256ms >0.256ms",
        "-> 10.244.9.9:8080 - - - - - - - -",
        "kube-system/dns:53 UDP IPv4 0 0 0 0 0 5 1 0 - -",
    ]


def test_wide_shows_the_times_to_connect_before_the_connections() -> None:
    text = "".join(write_view(look(maps(), traffic=True), wide=True))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert any(line.endswith("FAILED LATELY LOCAL CLIENTS") for line in lines)
    assert any("<0.128ms <0.256ms ready 1 0 12 0 - yes" in line for line in lines)


def test_numbers_end_in_the_same_column() -> None:
    lines = "".join(write_view(look(maps(), traffic=True))).splitlines()
    head, service, backend = lines[0], lines[2], lines[3]
    for name in ("CONNS", "INPKTS", "OUTPKTS", "INBYTES", "OUTBYTES"):
        end = head.index(name) + len(name)
        for line in (service, backend):
            assert line[end - 1].isdigit(), line
            assert line[end : end + 1] in ("", " "), line


def test_without_socket_lb_nothing_is_left_out() -> None:
    assert "Note:" not in "".join(write_view(look(busy_node(socket_lb=0))))


def test_a_number_that_leaves_out_sockets_of_pods_is_the_least_there_may_be() -> None:
    made = busy_node(socket_lb=2)
    connection(made, 1000, WEB_BACKENDS[0], OPEN)
    text = "".join(write_view(look(made)))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert f"-> {WEB_BACKENDS[0]} ready 1 0 1+ 0 -" in lines
    assert f"-> {WEB_BACKENDS[1]} ready 1 0 - 0 -" in lines
    assert "connections of sockets of pods and of UDP sockets of the node's processes are" in text
    web, dns = as_json(look(made))["services"]
    assert (web["at_least"], web["active"], web["inactive"]) == (["active"], 1, 0)
    assert [backend["active"] for backend in web["backends"]] == [1, None]
    assert (dns["at_least"], dns["active"], dns["inactive"]) == (["inactive"], 0, None)


def test_where_sockets_cannot_be_listed_the_note_is_about_all_of_them() -> None:
    made = busy_node()
    made.sockets = None
    text = "".join(write_view(look(made)))
    assert "Note: connections of sockets are not in ACTIVE and INACTIVE" in text


def as_json(view: View) -> Any:
    return json.loads("".join(write_view_json(view)))


def as_yaml(view: View) -> Any:
    return yaml.safe_load("".join(write_view_yaml(view)))


@pytest.mark.parametrize("read", [as_json, as_yaml])
def test_documents_have_all_that_tables_show(read: Callable[[View], Any]) -> None:
    document = read(look(maps(), traffic=True, failures=LATELY))
    assert document["socket_lb"] == "host"
    web, dns = document["services"]
    names = ("namespace", "name", "port_name", "port", "protocol", "family", "scheduler")
    assert [web[name] for name in names] == [
        *("default", "web", "http", 80, "TCP", "IPv4", "random")
    ]
    assert (web["active"], web["inactive"], web["source_ranges"]) == (12, 1, ["10.0.0.0/8"])
    node_port, vip = web["frontends"]
    assert (vip["address"], vip["port"], vip["restricted"]) == ("10.96.0.10", 80, False)
    assert (node_port["address"], node_port["frontend"]) == ("nodeport", "nodeport:30080/TCP")
    assert node_port["clients"]["other"] == {"action": "forward", "backends": 1, "local": True}
    first, second, gone = web["backends"]
    assert first == {
        **{"address": "10.244.1.5", "port": 8080, "state": "ready", "weight": 1, "local": True},
        **{"clients": ["pod", "node", "other"], "half_open": 0, "active": 12, "inactive": 0},
        "failed_lately": {"refused": 0, "unanswered": 0, "unreachable": 0},
        "counts": {
            **{"connections": 120, "packets": 1500, "bytes": 150000},
            **{"reply_packets": 1400, "reply_bytes": 9000000},
            **{"refused": 0, "unanswered": 0, "unreachable": 0},
        },
        "connect_times": {
            **{"connects": 100, "mean_ms": 0.19},
            **{"median_ms": [0.064, 0.128], "p95_ms": [0.128, 0.256]},
        },
    }
    assert second["connect_times"]["median_ms"] == [0.256, None]
    assert (gone["connect_times"], dns["connect_times"]) == (None, None)
    assert web["connect_times"]["connects"] == 103
    assert second["failed_lately"] == {"refused": 3, "unanswered": 4, "unreachable": 0}
    assert (second["half_open"], second["counts"]["unanswered"]) == (2, 4)
    assert gone["failed_lately"] is None
    assert (gone["state"], gone["counts"], gone["local"]) == ("draining", None, None)
    assert (dns["counts"]["rejected"], dns["counts"]["dropped"]) == (5, 1)
    assert "seconds" not in document


def test_a_table_without_services_has_names_of_columns_only() -> None:
    assert len(list(write_view(View((), "off")))) == 3


@pytest.mark.parametrize("read", [as_json, as_yaml])
def test_documents_without_services_are_documents(read: Callable[[View], Any]) -> None:
    assert read(View((), "off")) == {"socket_lb": "off", "services": []}


def test_rates_are_in_documents_with_their_seconds() -> None:
    before, now = (look(maps(), traffic=True) for _ in range(2))
    document = as_json(with_rates(before, now))
    assert document["seconds"] >= 0
    assert document["services"][0]["backends"][0]["rates"]["connections"] == 0


def test_changes_are_compared_by_service_port_and_backend() -> None:
    def rows(view: View) -> Iterator[tuple[str, int, tuple[Any, ...]]]:
        for records in view_records(view):
            assert all(len(row) == len(records.columns) for row in records.rows)
            yield records.name, records.keys, tuple(records.rows[0])

    assert list(rows(look(maps()))) == [
        (
            "services",
            3,
            (
                *("default/web:http", "TCP", "IPv4", "random"),
                *("keep" if name == "on_removal" else "" for name in SAID),
                *(60, ("10.0.0.0/8",)),
                (
                    "nodeport:30080/TCP restricted masquerade=node local=other",
                    "10.96.0.10:80/TCP masquerade=node",
                ),
            ),
        ),
        (
            "backends",
            4,
            ("default/web:http", "TCP", "IPv4", WEB_BACKENDS[0], "ready", 1, 0, 12, 0),
        ),
    ]
    assert len(list(rows(look(maps(), traffic=True)))) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12, "12"),
        (0.0, "0"),
        (0.04, "0.0"),
        (3.26, "3.3"),
        (9.96, "10"),
        (1234.5, "1234"),
    ],
)
def test_small_rates_have_a_decimal(value: float, text: str) -> None:
    assert number_text(value) == text
