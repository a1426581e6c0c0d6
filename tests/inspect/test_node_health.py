"""From facts about a node to its health in eleven lines."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from typing import Any

import pytest

from bpfsvc.inspect.node_health import (
    AgentHealth,
    InterfaceFacts,
    NodeFacts,
    as_object,
    lines,
    problems,
)
from bpfsvc.inspect.recent_failures import Carried, CarriedService, FailingBackend
from bpfsvc.inspect.status import ask_health

HEALTHY = NodeFacts(
    build="aaaa",
    expected_build="aaaa",
    running=True,
    health=AgentHealth(status=200),
    same_namespace=True,
    interfaces=(InterfaceFacts(name="eth0"), InterfaceFacts(name="veth1")),
    sockets=8,
    stale_sockets=0,
    all_sockets=8,
    services=2,
    frontends=5,
    backends=4,
    connections=10,
    new_connections=3,
    max_connections=1000,
    drops={},
    families=(4,),
    forwarding=(4,),
    masquerade_ports="10000-29999",
    masquerade_reserved=True,
    carries=Carried(97),
)


def test_a_healthy_node_is_shown_in_eleven_lines() -> None:
    assert lines(HEALTHY) == (
        "healthy",
        "carries:     no failing backend in the last 97 s",
        "build:       aaaa, of this version",
        "agent:       running, /healthz 200",
        "interfaces:  2 of 2 attached",
        "sockets:     8 of 8 hooks attached",
        "services:    2, with 5 frontends and 4 backends",
        "connections: 10 of 1000 entries (1.0 %), 3 not established",
        "drops:       none",
        "forwarding:  IPv4 on, IPv6 off",
        "masquerade:  ports 10000-29999, reserved",
    )


def test_notes_are_shown_with_the_agent_and_are_not_problems() -> None:
    """A node that serves the last good state is healthy, but the output says so."""
    facts = replace(HEALTHY, health=AgentHealth(status=200, notes=("serving the last good state",)))
    assert problems(facts) == ()
    assert "agent:       running, /healthz 200; serving the last good state" in lines(facts)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"running": False, "health": None}, "the agent is not running"),
        (
            {"health": AgentHealth(status=503, problems=("map frontends is full",))},
            "map frontends is full",
        ),
        ({"health": AgentHealth(status=503)}, "/healthz answers 503"),
        (
            {"health": AgentHealth(status=0, silent=True)},
            "the agent accepts connections and does not answer /healthz: it is stopped or stuck",
        ),
        ({"expected_build": "bbbb"}, "build aaaa is loaded, but this version's build is bbbb"),
        (
            {"interfaces": (InterfaceFacts(name="eth0", missing=("egress",)),)},
            "programs are missing from eth0",
        ),
        (
            {
                "interfaces": tuple(
                    InterfaceFacts(name=f"v{n}", stale=("ingress",)) for n in range(5)
                )
            },
            "programs of another build are on v0, v1, v2 and 2 more",
        ),
        ({"sockets": 7}, "some socket hooks are not attached, or run another build"),
        ({"stale_sockets": 1}, "some socket hooks are not attached, or run another build"),
        (
            {"connections": 950},
            "the map of connections is nearly full: enlarge it with --max-connections",
        ),
        ({"families": (4, 6)}, "IPv6 is not forwarded"),
        ({"masquerade_reserved": False}, "the masquerade ports 10000-29999 are not reserved"),
        (
            {"masquerade_ports": "", "masquerade_reserved": False},
            "the agent has not finished starting",
        ),
        (
            {"same_namespace": False},
            "this command runs in another network namespace than the agent",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_problem_is_named(change: dict[str, Any], reason: str) -> None:
    facts = replace(HEALTHY, **change)
    assert problems(facts) == (reason,)
    assert lines(facts)[0] == f"UNHEALTHY: {reason}"
    assert len(lines(facts)) == 11
    assert as_object(facts)["well"] is False


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"sockets": 0}, id="without socket hooks, as --cgroup-root none asks for"),
        pytest.param({"health": AgentHealth(status=0)}, id="with /healthz at an unknown address"),
        pytest.param({"drops": {"no endpoints": 3}}, id="with drops, which may be the clients'"),
        pytest.param(
            {"interfaces": (InterfaceFacts(name="eth0", ahead=("ingress: bpf at priority 1",)),)},
            id="with a foreign filter before ours, which may let packets pass",
        ),
    ],
)
def test_a_node_can_be_healthy(change: dict[str, Any]) -> None:
    assert lines(replace(HEALTHY, **change))[0] == "healthy"


def test_what_a_node_carries_can_fail_while_its_agent_is_healthy() -> None:
    backends = (
        FailingBackend("10.244.1.5:80", 20, 0, 9, 0),
        FailingBackend("10.244.2.7:80", 20, 1, 3, 0),
    )
    failing = (
        CarriedService("shop/web:http", 4, backends),
        CarriedService("shop/empty:80", 0, refused={"rejected__no_endpoints": 12}),
    )
    facts = replace(HEALTHY, carries=Carried(97, failing))
    assert lines(facts)[:2] == (
        "healthy",
        "carries:     FAILURES in the last 97 s: 1 service port of 2 Services has failing backends:"
        " shop/web:http (2 of 4 backends: 13 of 40 connections unanswered);"
        " see: bpfsvc services shop/web; 1 service port refuses clients: shop/empty:80"
        " (12 rejected: no endpoints); see: bpfsvc services shop/empty",
    )
    carries = json.loads(json.dumps(as_object(facts)))["carries"]
    assert carries["services"][0]["failing"][0]["unanswered"] == 9
    assert as_object(facts)["well"] is True


def test_without_an_answer_of_the_agent_failures_are_not_known() -> None:
    shown = lines(replace(HEALTHY, carries=None))[1]
    assert shown == "carries:     not known: no agent of this version answers"


def test_features_that_an_older_kernel_lacks_are_named_on_a_healthy_node() -> None:
    shown = lines(replace(HEALTHY, kernel_without=("bpf_set_retval", "tcx links")))
    assert shown[0] == "healthy"
    assert shown[-1] == ("kernel:      without bpf_set_retval; tcx links (bpfsvc doctor says more)")


def test_interfaces_with_xdp_are_named() -> None:
    served = (InterfaceFacts(name="eth0", xdp=True), InterfaceFacts(name="veth1"))
    text = "\n".join(lines(replace(HEALTHY, interfaces=served)))
    assert "interfaces:  2 of 2 attached, XDP on eth0" in text


def test_foreign_filters_and_drops_are_shown_on_a_healthy_node() -> None:
    interface = InterfaceFacts(name="eth0", ahead=("ingress: bpf 'guard' at priority 1",))
    text = "\n".join(lines(replace(HEALTHY, interfaces=(interface,), drops={"rewrite failed": 2})))
    assert "other programs first: eth0 ingress: bpf 'guard' at priority 1" in text
    assert "drops:       rewrite failed 2" in text


def test_a_server_that_is_stopped_is_not_taken_for_one_at_another_address() -> None:
    """The kernel accepts connections for a process that is stopped; nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = stopped.getsockname()
        assert ask_health(address) == AgentHealth(status=0, silent=True)
    assert ask_health(address) == AgentHealth(status=0)
