"""What a connection of a pod's socket leaves behind: a name, a note in the socket, an event.

The pod is a network namespace with a cgroup, and its backend listens in the pod itself: at an
address of which each part is another one.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bpfsvc.base.address import pack
from bpfsvc.datapath.attach import cgroup
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import stretched
from tests.packets.events import Events
from tests.packets.node import Node
from tests.packets.node_sockets import attached_cgroup
from tests.packets.packet import frame
from tests.packets.peers import Peers, address_of

UNKNOWN, TRIED, PROVEN = 0, 2, 3
"""``enum source_state``: what is known of a pod."""


class Pod:
    """A pod that connects to a Service."""

    def __init__(self, node: Node, peers: Peers, stack: ExitStack) -> None:
        self.node, self.peers = node, peers
        self._family = socket.AF_INET6 if peers.family == 6 else socket.AF_INET
        group = attached_cgroup(node, "pods", stack)
        self._namespace = Namespace("pod-sockets", cgroup=group / "pod")
        stack.callback(self._namespace.close)
        with self._namespace.entered():
            self._key = struct.pack("=Q", cgroup.netns_cookie())
        listener = stack.enter_context(self._namespace.socket(self._family))
        # A route, and no address: of IPv6, the kernel makes the route of an address later.
        route = ["local", address_of(peers.backend), "dev", "lo"]
        self._namespace.run(["ip", "route", "add", *route])
        listener.listen()
        backend = peers.with_port(peers.backend, listener.getsockname()[1])
        peers.service(node, [backend])
        self.is_known(PROVEN)
        stack.callback(node.pinned.map("namespaces").delete, self._key)

    def is_known(self, state: int) -> None:
        """Write what is known of where the pod's packets come from; it is not checked again."""
        record = self.node.pinned.layout.maps["namespaces"].value
        now = time.monotonic_ns()
        source = f"v{self.peers.family}"
        fields: dict[str, int | bytes] = {
            f"{source}.address": pack(address_of(self.peers.client)),
            f"{source}.state": state,
            f"{source}.tried": now,
            "checked": now + 10**12,
        }
        self.node.pinned.map("namespaces").update(self._key, record.pack(fields))

    def connects(self) -> socket.socket:
        """Return a socket that has connected to the Service, or has tried to."""
        made = self._namespace.socket(self._family)
        # The process that has made it has closed it before it makes another one.
        self._namespace.socket(self._family).close()
        made.setblocking(False)
        made.connect_ex((address_of(self.peers.vip), 80))
        return made

    def has_storage(self, made: socket.socket) -> bool:
        """Return True if a socket has storage of its own for translations."""
        storage = self.node.pinned.map("socket_translations")
        return storage.lookup(struct.pack("=i", made.fileno())) is not None


@pytest.fixture
def pod(node: Node, tcp_peers: Peers) -> Iterator[Pod]:
    with ExitStack() as stack:
        yield Pod(node, tcp_peers, stack)


def test_a_connection_of_a_known_pod_has_a_name_without_storage_in_its_socket(pod: Pod) -> None:
    with pod.connects() as made:
        is_decided = select.poll()
        is_decided.register(made, select.POLLOUT)
        assert is_decided.poll(stretched(10) * 1000)
        address, port = made.getpeername()[:2]
        assert pod.peers.with_port(address, port) == pod.peers.vip
        assert not pod.has_storage(made)


@pytest.mark.parametrize(
    ("state", "teaches"), [(UNKNOWN, True), (TRIED, False)], ids=["unknown", "tried"]
)
def test_of_connections_that_are_left_to_tc_those_that_teach_of_the_pod_have_storage(
    pod: Pod, state: int, teaches: bool
) -> None:
    pod.is_known(state)
    with pod.connects() as made:
        assert pod.has_storage(made) == teaches


def test_a_connection_whose_beginning_is_lost_for_want_of_room_has_no_end(pod: Pod) -> None:
    node, peers = pod.node, pod.peers
    events = Events(node)
    try:
        peers.service(node, [], "none", frontends=[peers.other_vip])
        events.fill_up(frame(peers.opening(peers.client, peers.other_vip)))
        with pod.connects():
            assert {event["kind"] for event in events.read()} == {"refused"}
        assert events.read() == []
        pod.connects().close()
        made, ended = events.read()
        assert (made["kind"], ended["kind"]) == ("made", "ended")
        assert ended["counters"] == made["counters"] > 0
    finally:
        events.close()
