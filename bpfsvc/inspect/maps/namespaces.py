"""Records about pods' sockets: their network namespaces, and the pods that opted out."""

from __future__ import annotations

from bpfsvc.base.address import unpack
from bpfsvc.inspect.fields import address_text, chooser, interface_text
from bpfsvc.inspect.maps.generic import known_entries
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row

_FAMILIES = ("v4", "v6")

_SOURCE = ("address", "ifindex", "class", "state")

_UNSHOWN = ("tried", "trials", "due")
"""Times and tries: for the programs alone."""

NAMESPACE = (
    *(f"{family}.{field}" for family in _FAMILIES for field in _SOURCE),
    "left_alone",
)

_INTERNAL = (
    *(f"{family}.{field}" for family in _FAMILIES for field in _UNSHOWN),
    *("checked", "found"),
)

OPTOUT = ("address",)


def namespaces(reader: Reader) -> Records:
    """Return the namespaces with sockets that connected to frontends, one row per known family.

    ``cookie`` is the kernel's number of the namespace (SO_NETNS_COOKIE). ``state`` is explained in
    ``bpf/maps/pod_netns.h``: calls are translated when it is proven.
    """
    more, entries = known_entries(reader, "namespaces", ("value",), NAMESPACE, *_INTERNAL)
    clients = reader.layout.constants_named("CLIENT_")
    states = reader.layout.constants_named("SOURCE_")
    rows: list[Row] = []
    for (cookie, *sources, left_alone), cells in entries:
        for at in range(0, len(sources), len(_SOURCE)):
            address, ifindex, kind, state = sources[at : at + len(_SOURCE)]
            if state:
                rows.append(
                    (
                        *(cookie, address_text(address), interface_text(ifindex)),
                        *(clients.get(kind, str(kind)), states.get(state, str(state))),
                        *(bool(left_alone), *cells),
                    )
                )
    columns = ("cookie", "address", "interface", "clients", "state", "left_alone", *more)
    return Records("namespaces", columns, sorted(rows))


def socket_optouts(reader: Reader) -> Records:
    """Return the addresses of pods that opted out: their sockets are not translated."""
    key = chooser(reader.layout.maps["socket_optouts"].key, OPTOUT)
    addresses = (key(raw_key)[0] for raw_key, _ in reader.entries("socket_optouts"))
    rows: list[Row] = [(unpack(address),) for address in sorted(addresses)]
    return Records("socket_optouts", ("address",), rows)
