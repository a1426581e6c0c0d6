"""A flow of a case as connections between namespaces, held against what is expected of it.

So that "dropped" does not only mean that nobody was there, the world answers on every address that
is asked for: a packet that no rule takes arrives there, as itself.
"""

from __future__ import annotations

import http.client
import ipaddress
import itertools
import socket
from collections import Counter
from contextlib import closing
from typing import Any, NamedTuple

from bpfsvc.lab.dial import Answer, ask, outcome
from bpfsvc.lab.namespace import Namespace
from bpfsvc.lab.patience import stretched
from tests.lab.scene import at, host
from tests.lab.sites import Place, Site
from tests.specification.verdicts import evaluate

Raw = dict[str, Any]

LEAST, MOST = 4, 40
"""Connections for each endpoint: as many in any case, and as many until all were met."""

_fresh = itertools.cycle(range(33000, 61000))
"""Ports from which datagrams are sent. One that the kernel chose may be that of a flow that still
lives, and goes on to its backend while that one serves, be it terminating."""


def equip(site: Site, case: Raw) -> None:
    """Let the endpoints of a case listen, and nobody have an address of an earlier case."""
    for place in site.places:
        place.clear()
    for slice_ in case["endpointslices"]:
        for point in slice_["endpoints"]:
            is_local = point.get("nodeName") == site.node.name
            place = site.backends if is_local else site.remote
            for address in point["addresses"]:
                place.hold(address)
            for port in slice_["ports"]:
                place.listen(port["port"])


class Asked(NamedTuple):
    """A flow on its site."""

    site: Site
    case: Raw
    flow: Raw

    @property
    def client(self) -> Namespace:
        """Where the flow begins."""
        if self.flow["from"] in ("node", "localhost"):
            return self.site.node
        if self.flow["src_ip"] in self._endpoint_addresses:
            return self.site.backends
        return self.site.clients if self.flow["from"] == "pod" else self.site.outside

    @property
    def to(self) -> str:
        """Where it is sent, as ``address:port``."""
        return at(self.flow["dst_ip"], self.flow["dst_port"])

    @property
    def is_to_node(self) -> bool:
        """Whether the node itself has the address."""
        destination = self.flow["dst_ip"]
        is_loopback = ipaddress.ip_address(destination).is_loopback
        return is_loopback or destination in self.case["node"]["ips"]

    @property
    def _endpoint_addresses(self) -> set[str]:
        return {
            address
            for slice_ in self.case["endpointslices"]
            for point in slice_["endpoints"]
            for address in point["addresses"]
        }

    def prepare(self) -> None:
        """Let the client have its address, and the world whatever is asked for."""
        if isinstance(self.client, Place):
            self.client.hold(self.flow["src_ip"])
        if not self.is_to_node and self.flow["dst_ip"] not in self._endpoint_addresses:
            self.site.remote.hold(self.flow["dst_ip"])
            self.site.remote.listen(self.flow["dst_port"])

    def once(self, timeout: float = 5.0, *, bound: bool | None = None) -> Answer:
        """Open one connection, or send one datagram.

        ``bound``: whether the client chooses its address before it connects. By default all do
        but those that talk to loopback, who get a loopback address from the kernel.
        """
        if bound is None:
            bound = self.flow["from"] != "localhost"
        is_tcp = self.flow["proto"] == "TCP"
        return ask(
            self.client,
            self.flow["dst_ip"],
            self.flow["dst_port"],
            "tcp" if is_tcp else "udp",
            source=(self.flow["src_ip"], 0 if is_tcp else next(_fresh)) if bound else None,
            timeout=timeout,
        )

    def failure(self, timeout: float) -> str:
        """Say how a connection fails; who answered if it does not."""
        try:
            return f"answered by {self.once(timeout)}"
        except OSError as error:
            return outcome(error)


def check(asked: Asked, expect: Raw, *, told_at_once: bool = False) -> None:
    """Assert that connections go where ``expect`` says, from whom it says.

    ``told_at_once``: a socket hook can refuse dropped connections, not lose them.
    """
    asked.prepare()
    if expect["verdict"] == "dnat":
        _answered(asked, expect)
    elif expect["verdict"] == "reject":
        assert asked.failure(timeout=5) == "refused"
    elif expect["verdict"] == "drop":
        assert asked.failure(timeout=0.3) == ("unreachable" if told_at_once else "timeout")
    else:
        assert expect["verdict"] == "none"
        _untouched(asked)


def _answered(asked: Asked, expect: Raw) -> None:
    """Ask until all endpoints were met, and look at each answer."""
    endpoints = set(expect["endpoints"])
    is_sticky = bool(evaluate(asked.case, asked.flow).affinity_seconds)
    masqueraded = set(expect.get("masquerade_endpoints", ()))
    if expect["masquerade"]:
        masqueraded = endpoints
    met: Counter[str] = Counter()
    for number in range(MOST * len(endpoints)):
        if number >= LEAST * len(endpoints) and (is_sticky or met.keys() == endpoints):
            break
        answer = asked.once()
        met[answer.local] += 1
        assert answer.local in endpoints
        assert answer.remote == asked.to
        if answer.local in masqueraded:
            assert host(answer.peer) in asked.case["node"]["ips"]
        else:
            assert host(answer.peer) == asked.flow["src_ip"]
    if is_sticky:
        assert len(met) == 1
    else:
        assert met.keys() == endpoints


def _untouched(asked: Asked) -> None:
    """A packet that no rule takes arrives where it was sent, from whom it was sent."""
    health_ports = {check["port"] for check in asked.case.get("hcnp", {}).values()}
    if asked.is_to_node and asked.flow["dst_port"] in health_ports:
        _health_checked(asked)
        return
    if asked.is_to_node:
        server = asked.site.node.serve(asked.flow["dst_port"])
        try:
            answer = asked.once()
        finally:
            asked.site.node.end(server)
    else:
        answer = asked.once()
    assert answer.local == asked.to
    assert host(answer.peer) == asked.flow["src_ip"]


def _health_checked(asked: Asked) -> None:
    """What listens on the health check's port is the agent."""
    address, port = asked.flow["dst_ip"], asked.flow["dst_port"]
    (check,) = (each for each in asked.case["hcnp"].values() if each["port"] == port)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with closing(http.client.HTTPConnection(address, port)) as talk:
        talk.sock = asked.client.socket(family)
        talk.sock.settimeout(stretched(5))
        talk.sock.bind((asked.flow["src_ip"], 0))
        talk.sock.connect((address, port))
        talk.request("GET", "/")
        assert talk.getresponse().status == check["http_status"]
