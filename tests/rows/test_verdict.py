"""From facts about a node to a verdict in ten lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bpfsvc.inspection.verdict import Facts, Health, InterfaceFacts, as_object, lines, reasons

WELL = Facts(
    build="aaaa",
    expected_build="aaaa",
    running=True,
    health=Health(status=200),
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
)


def test_a_node_that_is_well_says_so_in_ten_lines() -> None:
    assert lines(WELL) == (
        "well",
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


def test_what_is_worth_knowing_stands_beside_the_agent_and_is_no_reason() -> None:
    """A node that serves the last good state is well, and people should know."""
    found = replace(WELL, health=Health(status=200, notes=("serving the last good state",)))
    assert reasons(found) == ()
    assert "agent:       running, /healthz 200; serving the last good state" in lines(found)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"running": False, "health": None}, "the agent is not running"),
        (
            {"health": Health(status=503, problems=("map frontends is full",))},
            "map frontends is full",
        ),
        ({"health": Health(status=503)}, "/healthz answers 503"),
        ({"expected_build": "bbbb"}, "build aaaa is loaded, not this version's bbbb"),
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
        ({"same_namespace": False}, "this is another network namespace than the agent's"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_verdict_names_what_is_not_well(change: dict[str, Any], reason: str) -> None:
    facts = replace(WELL, **change)
    assert reasons(facts) == (reason,)
    assert lines(facts)[0] == f"NOT WELL: {reason}"
    assert len(lines(facts)) == 10
    assert as_object(facts)["well"] is False


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"sockets": 0}, id="without socket hooks, as --cgroup-root none asks for"),
        pytest.param({"health": Health(status=0)}, id="with /healthz at an address nobody told us"),
        pytest.param({"drops": {"no endpoints": 3}}, id="with drops, which may be the clients'"),
        pytest.param(
            {"interfaces": (InterfaceFacts(name="eth0", ahead=("ingress: bpf at priority 1",)),)},
            id="with a foreign filter before ours, which may let packets pass",
        ),
    ],
)
def test_a_node_can_be_well(change: dict[str, Any]) -> None:
    assert lines(replace(WELL, **change))[0] == "well"


def test_interfaces_with_xdp_are_named() -> None:
    served = (InterfaceFacts(name="eth0", xdp=True), InterfaceFacts(name="veth1"))
    text = "\n".join(lines(replace(WELL, interfaces=served)))
    assert "interfaces:  2 of 2 attached, XDP on eth0" in text


def test_foreign_filters_and_drops_are_told_even_when_all_is_well() -> None:
    interface = InterfaceFacts(name="eth0", ahead=("ingress: bpf 'guard' at priority 1",))
    text = "\n".join(lines(replace(WELL, interfaces=(interface,), drops={"rewrite failed": 2})))
    assert "before us: eth0 ingress: bpf 'guard' at priority 1" in text
    assert "drops:       rewrite failed 2" in text
