"""Choose service ports by arguments: names, namespaces, or addresses that clients use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

from bpfsvc.base.address import (
    ANY_NODE_ADDRESS_V4,
    ANY_NODE_ADDRESS_V6,
    address_and_port,
    family,
    is_address,
    pack,
)
from bpfsvc.base.errors import UsageError
from bpfsvc.base.near_misses import meant_text
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.inspect.fields import chooser, lacks
from bpfsvc.inspect.maps.of_service import UnknownService
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.services.facts import ServicePortFacts

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"(?:({_LABEL})/)?({_LABEL})(?::([-a-z0-9]+))?")
_NODE_PORT = re.compile(r"(nodeport|nodeport6)?:([0-9]+)")
_NODE = {
    "": (ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6),
    "nodeport": (ANY_NODE_ADDRESS_V4,),
    "nodeport6": (ANY_NODE_ADDRESS_V6,),
}


class Node(Protocol):
    """The node, as an argument that is an address needs it."""

    @property
    def addresses(self) -> frozenset[bytes]:
        """Its addresses at which node ports answer."""


class NodeAddresses:
    """The addresses of the node, read at their first use."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @cached_property
    def addresses(self) -> frozenset[bytes]:
        """The addresses of the node at which node ports answer."""
        layout = self._reader.layout.maps.get("node_addresses")
        if layout is None or lacks(layout.key, ("address",)) or lacks(layout.value, ("nodeports",)):
            return frozenset()
        key, value = chooser(layout.key, ("address",)), chooser(layout.value, ("nodeports",))
        entries = self._reader.entries("node_addresses")
        return frozenset(key(raw_key)[0] for raw_key, raw in entries if value(raw)[0])


class Wanted:
    """One argument of a command line.

    ``NAME``, ``NAMESPACE/NAME``, either with ``:PORT`` (name or number); or ``ADDRESS``,
    ``ADDRESS:PORT``, ``:NODEPORT``, ``nodeport:NODEPORT``, the latter three also with ``/TCP`` as
    frontends are shown.
    """

    def __init__(self, argument: str) -> None:
        """Raises ``UsageError`` for a text that is neither a name nor an address."""
        self.text = argument
        self._namespace = self._name = self._port_name = ""
        self._addresses: tuple[bytes, ...] = ()
        self._port = 0
        address_text, slash, protocol = argument.rpartition("/")
        self._protocol = protocol.upper() if slash and protocol.upper() in PROTOCOLS else ""
        if self._takes_place(address_text if self._protocol else argument):
            return
        self._protocol = ""
        name = _NAME.fullmatch(argument)
        if not name:
            raise UsageError(
                f"{argument!r} is neither the name of a Service nor an address",
                "write NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT, 10.96.0.1 or 10.96.0.1:443,"
                " or :30080 for a node port",
            )
        self._namespace, self._name, self._port_name = (part or "" for part in name.groups())

    def _takes_place(self, text: str) -> bool:
        """Try to read an address or a node port."""
        if is_address(text.strip("[]")):
            self._addresses = (pack(text.strip("[]")),)
        elif ends := address_and_port(text):
            self._addresses, self._port = (pack(ends[0]),), ends[1]
        elif node := _NODE_PORT.fullmatch(text):
            self._addresses, self._port = _NODE[node[1] or ""], int(node[2])
        return bool(self._addresses)

    def means(self, port: ServicePortFacts, node: Node) -> bool:
        """True if the argument means this service port."""
        if self._addresses:
            return self._protocol in ("", port.protocol) and any(
                self._port in (0, frontend.port) and self._is_at(frontend.address, node)
                for frontend in port.frontends
            )
        return (
            bool(port.namespace)
            and self._namespace in ("", port.namespace)
            and self._name == port.name
            and self._port_name in ("", port.port_name, str(port.number))
        )

    def _is_at(self, address: bytes, node: Node) -> bool:
        if address in self._addresses:
            return True
        if not self._port or address not in _NODE[""]:
            return False
        return any(
            own in node.addresses and family(own) == family(address) for own in self._addresses
        )

    def missing(self, namespace: str, ports: Iterable[ServicePortFacts]) -> UnknownService:
        """Return the error that the argument means no service port of ``ports``."""
        where = f" in namespace {namespace}" if namespace else ""
        what = "frontend" if self._addresses else "Service"
        name = self.text.partition(":")[0]
        known = {f"{port.namespace}/{port.name}" if "/" in name else port.name for port in ports}
        meant = "" if self._addresses else meant_text(name, known)
        return UnknownService(
            f"the kernel holds no {what} {self.text}{where}{meant}",
            "list them with: bpfsvc services",
        )


def choose(
    ports: Iterable[ServicePortFacts],
    wanted: Sequence[Wanted],
    namespace: str,
    node: Node,
    *,
    required: bool = True,
) -> list[ServicePortFacts]:
    """Return the service ports that any argument means; all service ports without arguments.

    ``namespace``: only service ports of this namespace; "" for all namespaces. ``required``: raise
    :class:`UnknownService` for an argument that means no service port.
    """
    within = [port for port in ports if namespace in ("", port.namespace)]
    if not wanted:
        return within
    chosen: set[int] = set()
    for argument in wanted:
        meant = {at for at, port in enumerate(within) if argument.means(port, node)}
        if required and not meant:
            raise argument.missing(namespace, within)
        chosen |= meant
    return [within[at] for at in sorted(chosen)]
