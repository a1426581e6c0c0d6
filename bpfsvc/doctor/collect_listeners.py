"""Find sockets of the node that win over Services, because they are bound to a cluster IP."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from bpfsvc.base.address import unpack
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.doctor import proc_sockets
from bpfsvc.inspect.fields import chooser
from bpfsvc.inspect.reader import PinnedReader, open_pinned

_WAITING = {"tcp": proc_sockets.LISTENS, "udp": "07"}
"""The state of a socket that waits for clients, as the kernel prints it."""


def collect_listeners(root: PinRoot) -> tuple[str, ...]:
    """Return such sockets as ``tcp ADDRESS port NUMBER``; none where no build is loaded."""
    cluster_ips = _cluster_ips(root)
    found: list[str] = []
    for protocol in ("tcp", "udp"):
        for text in proc_sockets.texts(protocol) if cluster_ips else ():
            found += read_listeners(text, protocol, cluster_ips)
    return tuple(found)


def read_listeners(text: str, protocol: str, wanted: Collection[bytes]) -> Iterator[str]:
    """Yield the sockets at the addresses ``wanted``, from the text of ``/proc/net/tcp`` or such."""
    for digits, port, state in proc_sockets.rows(text):
        address = proc_sockets.address(digits)
        if state == _WAITING[protocol] and address in wanted:
            yield f"{protocol} {unpack(address)} port {port}"


def _cluster_ips(root: PinRoot) -> set[bytes]:
    """Return all cluster IPs: addresses with an entry for what no other entry takes."""
    try:
        with open_pinned(root) as pinned:
            reader = PinnedReader(pinned)
            names = ("address", "port", "protocol")
            choose = chooser(reader.layout.maps["frontends"].key, names)
            keys = (choose(key) for key, _ in reader.entries("frontends"))
            return {address for address, port, protocol in keys if not (port or protocol)}
    except BpfsvcError:
        return set()
