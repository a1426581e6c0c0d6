"""Names of Services and Pods in a question become addresses."""

from __future__ import annotations

import pytest

from bpfsvc.base.address import pack, unpack
from bpfsvc.base.errors import UsageError
from bpfsvc.explain.names import question_with_names
from bpfsvc.explain.question import Question
from bpfsvc.model import PodPlace, Port, Service

BOTH = (pack("10.96.0.10"), pack("fd96::10"))
V6 = (pack("fd96::11"),)
PORTS = (Port("http", 6, 80, 0), Port("dns", 17, 53, 0), Port("http-udp", 17, 80, 0))


SERVICES = {
    "shop": Service("prod", "shop", "ClusterIP", BOTH, PORTS),
    "six": Service("prod", "six", "ClusterIP", V6, PORTS),
    "123": Service("prod", "123", "ClusterIP", BOTH, PORTS),
    "alias": Service("prod", "alias", "ExternalName", (), PORTS),
}
PODS = {
    "here": PodPlace("node-1", (pack("10.244.1.5"), pack("fd44:1::5")), on_host_network=False),
    "four": PodPlace("node-1", (pack("10.244.1.6"),), on_host_network=False),
    "there": PodPlace("node-2", (pack("10.244.2.5"),), on_host_network=False),
    "host": PodPlace("node-1", (pack("192.168.50.11"),), on_host_network=True),
    "host-there": PodPlace("node-2", (pack("192.168.50.12"),), on_host_network=True),
    "new": PodPlace("", (), on_host_network=False),
}


class Objects:
    """A node, and the Services and Pods of the namespace prod."""

    node_name = "node-1"

    def service(self, namespace: str, name: str) -> Service | None:
        """Return a Service."""
        return SERVICES.get(name) if namespace == "prod" else None

    def pod(self, namespace: str, name: str) -> PodPlace | None:
        """Return where a Pod is."""
        return PODS.get(name) if namespace == "prod" else None

    def services(self) -> list[str]:
        """Return the names of all Services."""
        return [f"prod/{name}" for name in SERVICES]


def asked(client: str, protocol: str, destination: str, origin: str | None = None) -> Question:
    return question_with_names(origin, client, protocol, destination, "", Objects())


@pytest.mark.parametrize(
    ("protocol", "destination", "address", "port"),
    [
        ("TCP", "prod/shop:80", "10.96.0.10", 80),
        ("tcp", "prod/shop:http", "10.96.0.10", 80),
        ("UDP", "prod/shop:dns", "10.96.0.10", 53),
        ("TCP", "prod/six:80", "fd96::11", 80),
        ("TCP", "prod/123:80", "10.96.0.10", 80),
        ("TCP", "prod/123:http", "10.96.0.10", 80),
        ("TCP", "prod/there:8080", "10.244.2.5", 8080),
        ("TCP", "10.96.0.10:80", "10.96.0.10", 80),
        ("TCP", "[fd96::10]:80", "fd96::10", 80),
    ],
)
def test_a_destination_is_found_by_its_name(
    protocol: str, destination: str, address: str, port: int
) -> None:
    asked_question = asked("prod/here", protocol, destination)
    assert (unpack(asked_question.destination), asked_question.port) == (address, port)


@pytest.mark.parametrize(
    ("client", "origin", "address"),
    [
        ("prod/here", "pod", "10.244.1.5"),
        ("prod/there", "external", "10.244.2.5"),
        ("prod/host", "node", "192.168.50.11"),
        ("prod/host-there", "external", "192.168.50.12"),
    ],
)
def test_for_the_name_of_a_pod_it_is_known_where_the_packet_comes_from(
    client: str, origin: str, address: str
) -> None:
    asked_question = asked(client, "TCP", "prod/shop:80")
    assert (asked_question.origin, unpack(asked_question.source)) == (origin, address)
    assert asked(client, "TCP", "prod/shop:80", "external").origin == "external"


@pytest.mark.parametrize(
    ("client", "destination", "source", "address"),
    [
        ("prod/here", "prod/six:80", "fd44:1::5", "fd96::11"),
        ("fd00::1", "prod/shop:80", "fd00::1", "fd96::10"),
        ("prod/here", "[fd96::10]:80", "fd44:1::5", "fd96::10"),
    ],
)
def test_both_ends_are_of_one_family(
    client: str, destination: str, source: str, address: str
) -> None:
    asked_question = asked(client, "TCP", destination, "pod")
    assert (unpack(asked_question.source), unpack(asked_question.destination)) == (source, address)


@pytest.mark.parametrize(
    ("client", "destination", "complaint"),
    [
        ("10.244.1.5", "prod/shop:80", "it needs --from"),
        ("prod/none", "prod/shop:80", "there is no Pod prod/none"),
        ("prod/here", "prod/none:80", "no Service prod/none with a cluster IP, and no Pod"),
        ("prod/here", "prod/shpo:80", "did you mean prod/shop?"),
        ("prod/here", "prod/shop:81", "Service prod/shop has no port 81/TCP"),
        ("prod/here", "prod/shop:dns", "Service prod/shop has no port dns/TCP"),
        ("prod/here", "prod/shop", "has no port"),
        ("prod/here", "prod/there:http", "'http' is not a number, and prod/there is a Pod"),
        ("prod/here", "prod/alias:80", "Service prod/alias has no cluster IP"),
        ("prod/new", "prod/shop:80", "Pod prod/new has no address (not scheduled yet)"),
        ("prod/four", "prod/six:80", "cannot send to"),
        ("a/b/c", "prod/shop:80", "'a/b/c' is neither an address nor a name"),
        ("prod/here", "Prod/shop:80", "'Prod/shop:80' is neither an address nor a name"),
    ],
)
def test_a_name_that_cannot_be_used_is_an_error(
    client: str, destination: str, complaint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        asked(client, "TCP", destination)
    assert complaint in caught.value.message
    assert caught.value.hint


def test_the_ports_of_the_service_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        asked("prod/here", "TCP", "prod/shop:81")
    assert caught.value.hint == "its ports are: 80/TCP (http), 53/UDP (dns), 80/UDP (http-udp)"
