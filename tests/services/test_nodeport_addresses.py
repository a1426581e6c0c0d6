"""The node addresses where NodePorts answer and health checks listen."""

from __future__ import annotations

import pytest

from bpfsvc.base.address import pack, unpack
from bpfsvc.model import Node
from bpfsvc.services.rules.nodeport_addresses import OPEN, OPEN_LOOPBACK, SHUT, resolve

V4, SECOND_V4 = "192.168.0.2", "192.168.1.2"
V6, SECOND_V6 = "2001:db8::1", "2001:db8:1::2"
LO4, OTHER_LO4, LO6 = "127.0.0.1", "127.0.0.2", "::1"
ADDRESSES = (V4, SECOND_V4, V6, SECOND_V6, LO4, OTHER_LO4, LO6)
DUAL = Node("here", addresses=(pack(V4), pack(V6)))
SINGLE = Node("here", addresses=(pack(V4),))
UNKNOWN = Node("here")
PRIMARY = ("primary",)


def accepted(setting: tuple[str, ...], node: Node = DUAL, *, localhost: bool = True) -> set[str]:
    resolved = resolve(setting, node, localhost=localhost)
    return {text for text in ADDRESSES if resolved.state(pack(text)) != SHUT}


ALL_V4, ALL_V6 = {V4, SECOND_V4}, {V6, SECOND_V6}
LOOPBACK = {LO4, OTHER_LO4}

CASES = [
    ("no list accepts everywhere but at ::1", (), DUAL, ALL_V4 | ALL_V6 | LOOPBACK),
    ("all means ranges of all addresses", ("all",), DUAL, ALL_V4 | ALL_V6 | LOOPBACK),
    ("localhost means 127/8 and ::1, and no other address", ("localhost",), DUAL, LOOPBACK | {LO6}),
    (
        "primary and localhost accept at the node's own addresses and on loopback",
        ("primary", "localhost"),
        DUAL,
        {V4, V6, LO6} | LOOPBACK,
    ),
    (
        "localhost of a node of one family excludes the other addresses of the other family",
        ("localhost", "primary"),
        SINGLE,
        {V4, LO6} | LOOPBACK,
    ),
    (
        "::1 has to be named, ranges that contain it do not name it",
        ("all", "::/1"),
        DUAL,
        ALL_V4 | ALL_V6 | LOOPBACK,
    ),
    (
        "all and localhost accept everywhere",
        ("all", "localhost"),
        DUAL,
        ALL_V4 | ALL_V6 | LOOPBACK | {LO6},
    ),
    (
        "a range of all IPv6 addresses lists no IPv4 address",
        ("192.168.1.0/24", "::/0"),
        DUAL,
        {SECOND_V4} | ALL_V6,
    ),
    (
        "keywords and ranges may be mixed",
        ("192.168.1.0/24", "primary", "2001:db8:1::/64"),
        DUAL,
        ALL_V4 | ALL_V6,
    ),
    (
        "an unknown primary address leaves the other values",
        ("primary", "localhost", "192.168.1.0/24"),
        UNKNOWN,
        {SECOND_V4, LO6} | LOOPBACK,
    ),
    ("primary accepts at the node's own two addresses", PRIMARY, DUAL, {V4, V6}),
    (
        "primary of a node of one family accepts all of the other",
        PRIMARY,
        SINGLE,
        {V4} | ALL_V6,
    ),
    (
        "primary of a node without addresses accepts everywhere",
        PRIMARY,
        UNKNOWN,
        ALL_V4 | ALL_V6 | LOOPBACK,
    ),
    (
        "primary of a node known by loopback only accepts everywhere",
        PRIMARY,
        Node("here", addresses=(pack(LO4), pack(LO6))),
        ALL_V4 | ALL_V6 | LOOPBACK,
    ),
    (
        "a list of IPv4 ranges accepts all of IPv6",
        ("192.168.1.0/24",),
        DUAL,
        {SECOND_V4} | ALL_V6,
    ),
    (
        "a list of IPv6 ranges accepts all of IPv4",
        ("2001:db8::1/128",),
        DUAL,
        ALL_V4 | LOOPBACK | {V6},
    ),
    (
        "a range of all addresses makes other ranges of its family unnecessary",
        ("192.168.1.0/24", "0.0.0.0/0", "2001:db8:1::/64"),
        DUAL,
        ALL_V4 | LOOPBACK | {SECOND_V6},
    ),
    (
        "a list that matches no address accepts nothing of its family",
        ("10.0.0.0/8",),
        DUAL,
        ALL_V6,
    ),
    (
        "loopback can be listed",
        ("127.0.0.0/8", "2001:db8::/64"),
        DUAL,
        LOOPBACK | {V6},
    ),
    (
        "::1 is accepted if it is listed",
        ("192.168.0.0/24", "::1/128"),
        DUAL,
        {V4, LO6},
    ),
]


@pytest.mark.parametrize(
    ("setting", "node", "expected"), [pytest.param(*case, id=name) for name, *case in CASES]
)
def test_node_addresses_where_nodeports_answer(
    setting: tuple[str, ...], node: Node, expected: set[str]
) -> None:
    assert accepted(setting, node) == expected


@pytest.mark.parametrize(
    "setting", [(), ("127.0.0.0/8",), ("0.0.0.0/0",), ("localhost",), ("::1/128",)]
)
def test_loopback_can_be_switched_off(setting: tuple[str, ...]) -> None:
    assert not accepted(setting, localhost=False) & (LOOPBACK | {LO6})


@pytest.mark.parametrize("range_of_ipv6", ["::/0", "::/1"])
def test_a_range_of_ipv6_does_not_make_nodeports_answer_on_loopback_of_ipv4(
    range_of_ipv6: str,
) -> None:
    assert not accepted(("192.168.1.0/24", range_of_ipv6)) & (LOOPBACK | {LO6})


def test_the_entry_of_loopback_shows_if_it_covers_the_whole_loopback_network() -> None:
    """With a list, only addresses on an interface count; 127.0.0.2 is on none."""
    states = [
        resolve(setting, DUAL, localhost=True).state(pack(LO4))
        for setting in (
            *((), ("127.0.0.0/8",), ("127.0.0.1/32",), ("64.0.0.0/2",), ("192.168.0.0/24",)),
            ("0.0.0.0/0",),
        )
    ]
    assert states == [OPEN_LOOPBACK, OPEN, OPEN, OPEN, SHUT, OPEN_LOOPBACK]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        pytest.param((), ["0.0.0.0", "::"], id="without a list: everywhere"),
        pytest.param(("0.0.0.0/0",), ["0.0.0.0", "::"], id="everywhere, if all are listed"),
        pytest.param(PRIMARY, [V4, V6], id="on the node's own addresses"),
        pytest.param(("192.168.0.0/16",), [V4, SECOND_V4, "::"], id="on each that is listed"),
        pytest.param(("10.0.0.0/8", "fd00::/8"), [], id="nowhere, if nothing matches"),
    ],
)
def test_node_addresses_where_health_checks_listen(
    setting: tuple[str, ...], expected: list[str]
) -> None:
    resolved = resolve(setting, DUAL, localhost=True)
    own = [pack(text) for text in ADDRESSES]
    found = [unpack(one) for family in (4, 6) for one in resolved.listening(own, family)]
    assert found == expected
