"""Entries of the socket hooks about pods become records."""

from __future__ import annotations

from bpfsvc.base.address import pack
from tests.inspect.inspected import shown
from tests.inspect.pinned import Fields, Maps

_HOME: Fields = (
    ("address", "16s"),
    ("tried", "Q"),
    *((name, "I") for name in ("ifindex", "class", "state", "trials", "due", "zero")),
)
Row = dict[str, int | bytes]

MAPS: dict[str, tuple[str, Fields, Fields]] = {
    "namespaces": (
        "lru_hash",
        (("value", "Q"),),
        (
            *((f"{family}.{name}", kind) for family in ("v4", "v6") for name, kind in _HOME),
            *(("checked", "Q"), ("left_alone", "I"), ("found", "I")),
        ),
    ),
    "socket_optouts": ("hash", (("address", "16s"),), (("value", "I"),)),
}


def test_a_namespace_has_a_record_for_each_known_family() -> None:
    maps = Maps(MAPS)
    v4: Row = {
        "v4.address": pack("10.244.1.5"),
        "v4.ifindex": 999_999,
        "v4.state": 3,
        "v4.tried": 7,
    }
    v6: Row = {"v6.address": pack("fd44::5"), "v6.ifindex": 999_998, "v6.state": 1, "v6.class": 2}
    maps.put("namespaces", {"value": 20}, v4 | v6 | {"left_alone": 1})
    maps.put("namespaces", {"value": 7}, v4 | {"v4.state": 4})
    maps.put("namespaces", {"value": 8}, {"checked": 5})
    assert shown(maps, "namespaces") == [
        {
            "cookie": 7,
            "address": "10.244.1.5",
            "interface": "#999999",
            "clients": "pod",
            "state": "unsure",
            "left_alone": False,
        },
        {
            "cookie": 20,
            "address": "10.244.1.5",
            "interface": "#999999",
            "clients": "pod",
            "state": "proven",
            "left_alone": True,
        },
        {
            "cookie": 20,
            "address": "fd44::5",
            "interface": "#999998",
            "clients": "other",
            "state": "learned",
            "left_alone": True,
        },
    ]


def test_opted_out_pods_are_a_list_of_addresses() -> None:
    maps = Maps(MAPS)
    for text in ("fd44::5", "10.244.1.5"):
        maps.put("socket_optouts", {"address": pack(text)}, {"value": 1})
    assert shown(maps, "socket_optouts") == [{"address": "10.244.1.5"}, {"address": "fd44::5"}]
