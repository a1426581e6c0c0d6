"""Records of pods' sockets: what is known of their network namespaces, and who opted out."""

from __future__ import annotations

from bpfsvc.address import unpack
from bpfsvc.inspection.fields import address_text, chooser, interface_text
from bpfsvc.inspection.generic import extras
from bpfsvc.inspection.reader import Reader
from bpfsvc.inspection.records import Records, Row
from bpfsvc.inspection.services import CLIENTS

_FAMILIES = ("v4", "v6")

_STATES = ("unknown", "learned", "tried", "proven", "unsure")
"""By their number in namespaces.h: calls are translated when it is proven."""

_HOME = ("address", "ifindex", "class", "state")

_UNSHOWN = ("tried", "trials", "due")
"""When something has been, or is to be, done: for the programs alone."""

NAMESPACE = (
    *(f"{family}.{field}" for family in _FAMILIES for field in _HOME),
    "left_alone",
)

_INTERNAL = (
    *(f"{family}.{field}" for family in _FAMILIES for field in _UNSHOWN),
    *("checked", "found"),
)

OPTOUT = ("address",)


def namespaces(reader: Reader) -> Records:
    """Give the namespaces that asked for frontends, one row for each family that is known.

    ``cookie`` is the kernel's number of the namespace (SO_NETNS_COOKIE).
    """
    layout = reader.layout.maps["namespaces"]
    key, value = chooser(layout.key, ("value",)), chooser(layout.value, NAMESPACE)
    more = extras(layout, ("value",), (*NAMESPACE, *_INTERNAL))
    rows: list[Row] = []
    for raw_key, raw in reader.rows("namespaces"):
        *homes, left_alone = value(raw)
        for at in range(0, len(homes), len(_HOME)):
            address, ifindex, kind, state = homes[at : at + len(_HOME)]
            if not state:
                continue
            row: Row = (
                key(raw_key)[0],
                address_text(address),
                interface_text(ifindex),
                _name(CLIENTS, kind),
                _name(_STATES, state),
                bool(left_alone),
            )
            rows.append(row + more.values(raw_key, raw))
    columns = ("cookie", "address", "interface", "clients", "state", "left_alone", *more.columns)
    return Records("namespaces", columns, sorted(rows))


def socket_optouts(reader: Reader) -> Records:
    """Give the addresses of pods whose sockets are left alone, as they asked for it."""
    key = chooser(reader.layout.maps["socket_optouts"].key, OPTOUT)
    found = (key(raw_key)[0] for raw_key, _ in reader.rows("socket_optouts"))
    rows: list[Row] = [(unpack(address),) for address in sorted(found)]
    return Records("socket_optouts", ("address",), rows)


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else str(number)
