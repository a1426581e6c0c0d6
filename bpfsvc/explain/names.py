"""Names in a question: ``prod/shop:80`` for a Service, ``prod/pod-abc`` for a Pod.

The running agent, or a directory of manifests, knows the names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from bpfsvc.base.address import address_and_port, family, pack, unpack
from bpfsvc.base.errors import UsageError
from bpfsvc.base.near_misses import meant_text
from bpfsvc.base.protocols import PROTOCOL_NAMES, PROTOCOLS
from bpfsvc.explain.question import Question, parse_address, question
from bpfsvc.model import PodPlace, Service

_NAME = re.compile(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?)/([a-z0-9]([-.a-z0-9]*[a-z0-9])?)")


class Directory(Protocol):
    """Finds objects by their names."""

    @property
    def node_name(self) -> str:
        """The node that is asked about."""

    def service(self, namespace: str, name: str) -> Service | None:
        """Return a Service."""

    def pod(self, namespace: str, name: str) -> PodPlace | None:
        """Return where a Pod is."""

    def services(self) -> Collection[str]:
        """Return the names of all Services, ``namespace/name``."""


class _Client(NamedTuple):
    origin: str | None
    addresses: Sequence[bytes]


def is_name(text: str) -> bool:
    """True if a text is meant as the name of an object; no address has a slash."""
    return "/" in text


def question_with_names(
    origin: str | None,
    source: str,
    protocol: str,
    destination: str,
    interface: str,
    directory: Directory,
) -> Question:
    """Return the question, with addresses in the place of names.

    If objects have addresses of both families, the question has the first family of the
    destination that the client has, too. Raises :class:`UsageError` for a name that does
    not exist or has no address.
    """
    client = _client(origin, source, directory)
    addresses, port = _destination(destination, protocol.upper(), directory)
    families = {family(address) for address in client.addresses}
    chosen = next((address for address in addresses if family(address) in families), addresses[0])
    sender = next(
        (address for address in client.addresses if family(address) == family(chosen)),
        client.addresses[0],
    )
    if client.origin is None:
        raise UsageError(
            "the question is incomplete: it needs --from",
            "only for the name of a Pod it is known where the packet comes from",
        )
    return question(client.origin, unpack(sender), protocol, unpack(chosen), port, interface)


def _client(origin: str | None, text: str, directory: Directory) -> _Client:
    if not is_name(text):
        return _Client(origin, (parse_address(text),))
    pod = directory.pod(*_parts(text, text))
    if pod is None:
        raise _missing(text, f"there is no Pod {text}")
    if not pod.addresses:
        raise _without_address(text, pod)
    if pod.node != directory.node_name:
        usual = "external"
    else:
        usual = "node" if pod.on_host_network else "pod"
    return _Client(origin or usual, pod.addresses)


def _destination(text: str, protocol: str, directory: Directory) -> tuple[Sequence[bytes], int]:
    if not is_name(text):
        ends = address_and_port(text)
        if ends is None:
            raise UsageError(
                f"{text!r} is not an address and a port",
                "write 10.0.0.1:80, or [fd00::1]:80 for IPv6",
            )
        return (pack(ends[0]),), ends[1]
    whole, _, port_text = text.partition(":")
    namespace, name = _parts(whole, text)
    if not port_text:
        raise UsageError(f"{text!r} has no port", f"write {text}:80, or the name of a port")
    if service := directory.service(namespace, name):
        return service.cluster_ips, _service_port(service, whole, protocol, port_text)
    pod = directory.pod(namespace, name)
    if pod is None:
        meant = meant_text(whole, directory.services())
        raise _missing(whole, f"there is no Service {whole} with a cluster IP, and no Pod{meant}")
    if not pod.addresses:
        raise _without_address(whole, pod)
    if not port_text.isdigit():
        raise UsageError(
            f"{port_text!r} is not a number, and {whole} is a Pod",
            "only ports of Services have names here",
        )
    return pod.addresses, int(port_text)


def _service_port(service: Service, whole: str, protocol: str, text: str) -> int:
    if not service.cluster_ips:
        raise UsageError(
            f"Service {whole} has no cluster IP: clients connect to its Pods",
            "ask about the address of a Pod",
        )
    for port in service.ports:
        if text in (port.name, str(port.number)) and PROTOCOLS.get(protocol) == port.protocol:
            return port.number
    ports = ", ".join(
        f"{each_port.number}/{PROTOCOL_NAMES[each_port.protocol]}"
        + (f" ({each_port.name})" if each_port.name else "")
        for each_port in service.ports
    )
    raise UsageError(f"Service {whole} has no port {text}/{protocol}", f"its ports are: {ports}")


def _parts(name: str, text: str) -> tuple[str, str]:
    match = _NAME.fullmatch(name)
    if not match:
        raise UsageError(
            f"{text!r} is neither an address nor a name",
            "write NAMESPACE/SERVICE:PORT, NAMESPACE/POD, or an address",
        )
    return match[1], match[3]


def _missing(name: str, text: str) -> UsageError:
    namespace = name.partition("/")[0]
    return UsageError(text, f"list them with: kubectl get services,pods -n {namespace}")


def _without_address(name: str, pod: PodPlace) -> UsageError:
    where = f"on node {pod.node}" if pod.node else "not scheduled yet"
    return UsageError(
        f"Pod {name} has no address ({where})", "ask when it runs, or give an address"
    )
