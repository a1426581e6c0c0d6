"""A flow of a case as real connections between namespaces, compared with the expected verdict.

A server answers on every destination address, so that "dropped" cannot mean a missing server: an
untranslated packet arrives there unchanged.
"""

from __future__ import annotations

import http.client
import ipaddress
import itertools
import socket
from collections import Counter
from contextlib import closing
from typing import Any, NamedTuple

from bpfsvc.devtools.lab.dial import Reply, ask, outcome
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import stretched
from tests.lab.case_testbed import CaseTestbed, Peer
from tests.lab.testbed import at, host
from tests.specification.verdicts import evaluate

Raw = dict[str, Any]

LEAST, MOST = 4, 40
"""Connections per endpoint: at least, and at most until all endpoints have answered."""

_fresh = itertools.cycle(range(33000, 61000))
"""Source ports of datagrams. A port chosen by the kernel may belong to a flow that still lives and
keeps its backend while that one serves, even if it is terminating."""


def set_up_case(testbed: CaseTestbed, case: Raw) -> None:
    """Start the servers of a case's endpoints, and remove the addresses of earlier cases."""
    for peer in testbed.peers:
        peer.clear()
    for slice_ in case["endpointslices"]:
        for point in slice_["endpoints"]:
            is_local = point.get("nodeName") == testbed.node.name
            peer = testbed.backends if is_local else testbed.remote
            for address in point["addresses"]:
                peer.add_address(address)
            for port in slice_["ports"]:
                peer.serve_port(port["port"])


class CaseFlow(NamedTuple):
    """A flow on the testbed of its case."""

    testbed: CaseTestbed
    case: Raw
    flow: Raw

    @property
    def client(self) -> Namespace:
        """The namespace of the client."""
        if self.flow["from"] in ("node", "localhost"):
            return self.testbed.node
        if self.flow["src_ip"] in self._endpoint_addresses:
            return self.testbed.backends
        return self.testbed.clients if self.flow["from"] == "pod" else self.testbed.outside

    @property
    def to(self) -> str:
        """The destination, as ``address:port``."""
        return at(self.flow["dst_ip"], self.flow["dst_port"])

    @property
    def is_to_node(self) -> bool:
        """True if the node itself has the address."""
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
        """Add the client's address, and a server at the destination if it is no endpoint."""
        if isinstance(self.client, Peer):
            self.client.add_address(self.flow["src_ip"])
        if not self.is_to_node and self.flow["dst_ip"] not in self._endpoint_addresses:
            self.testbed.remote.add_address(self.flow["dst_ip"])
            self.testbed.remote.serve_port(self.flow["dst_port"])

    def once(self, timeout: float = 5.0, *, bound: bool | None = None) -> Reply:
        """Open one connection, or send one datagram.

        ``bound``: the client binds its address before it connects. By default all clients do,
        except those that connect to loopback; the kernel chooses a loopback address for them.
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
        """Return how a connection fails, or who answered it."""
        try:
            return f"answered by {self.once(timeout)}"
        except OSError as error:
            return outcome(error)


def check(case_flow: CaseFlow, expect: Raw) -> None:
    """Assert that connections reach what ``expect`` says, with the client address that it says."""
    case_flow.prepare()
    if expect["verdict"] == "dnat":
        _answered(case_flow, expect)
    elif expect["verdict"] == "reject":
        assert case_flow.failure(timeout=5) == "refused"
    elif expect["verdict"] == "drop":
        assert case_flow.failure(timeout=0.3) == "timeout"
    else:
        assert expect["verdict"] == "none"
        _untouched(case_flow)


def _answered(case_flow: CaseFlow, expect: Raw) -> None:
    """Connect until all endpoints have answered, and check each answer."""
    endpoints = set(expect["endpoints"])
    is_sticky = bool(evaluate(case_flow.case, case_flow.flow).affinity_seconds)
    masqueraded = set(expect.get("masquerade_endpoints", ()))
    if expect["masquerade"]:
        masqueraded = endpoints
    answers: Counter[str] = Counter()
    for number in range(MOST * len(endpoints)):
        if number >= LEAST * len(endpoints) and (is_sticky or answers.keys() == endpoints):
            break
        answer = case_flow.once()
        answers[answer.local] += 1
        assert answer.local in endpoints
        assert answer.remote == case_flow.to
        if answer.local in masqueraded:
            assert host(answer.peer) in case_flow.case["node"]["ips"]
        else:
            assert host(answer.peer) == case_flow.flow["src_ip"]
    if is_sticky:
        assert len(answers) == 1
    else:
        assert answers.keys() == endpoints


def _untouched(case_flow: CaseFlow) -> None:
    """Assert that an untranslated packet arrives at its destination with its source address."""
    health_ports = {check["port"] for check in case_flow.case.get("hcnp", {}).values()}
    if case_flow.is_to_node and case_flow.flow["dst_port"] in health_ports:
        _health_checked(case_flow)
        return
    if case_flow.is_to_node:
        server = case_flow.testbed.node.serve(case_flow.flow["dst_port"])
        try:
            answer = case_flow.once()
        finally:
            case_flow.testbed.node.end(server)
    else:
        answer = case_flow.once()
    assert answer.local == case_flow.to
    assert host(answer.peer) == case_flow.flow["src_ip"]


def _health_checked(case_flow: CaseFlow) -> None:
    """Assert that the agent answers on the port of the health check."""
    address, port = case_flow.flow["dst_ip"], case_flow.flow["dst_port"]
    (check,) = (each for each in case_flow.case["hcnp"].values() if each["port"] == port)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with closing(http.client.HTTPConnection(address, port)) as talk:
        talk.sock = case_flow.client.socket(family)
        talk.sock.settimeout(stretched(5))
        talk.sock.bind((case_flow.flow["src_ip"], 0))
        talk.sock.connect((address, port))
        talk.request("GET", "/")
        assert talk.getresponse().status == check["http_status"]
