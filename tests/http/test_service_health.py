"""Health checks for load balancers: which Services have one, what it counts, and its response."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPResponse
from queue import SimpleQueue

import pytest

from bpfsvc.base.address import pack
from bpfsvc.http.service_health import ServiceHealthChecks
from bpfsvc.model import EndpointSlice, Service
from bpfsvc.services.rules.view import HealthCheck, evaluate
from tests.services.objects import CONFIG, HTTP, NODE, endpoint_slice, service

WEB = ("default", "web")
SECONDS = 10
"""The longest wait for an immediate response."""


def balanced(**spec: object) -> Service:
    given: dict[str, object] = {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 31000,
    }
    return service(**(given | spec))  # type: ignore[arg-type]


def health_checks(of: Service, slices: list[EndpointSlice]) -> Mapping[int, HealthCheck]:
    return evaluate(of, slices, NODE, CONFIG).summary.health_checks


# -- which Services have one, and what it counts --


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"type": "NodePort"}, id="a NodePort Service"),
        pytest.param({"externalTrafficPolicy": "Cluster"}, id="the policy Cluster"),
        pytest.param({"healthCheckNodePort": 0}, id="no port for it"),
        pytest.param({"clusterIP": "None"}, id="no cluster IP"),
        pytest.param(
            {"labels": {"service.kubernetes.io/service-proxy-name": ""}}, id="another proxy's"
        ),
    ],
)
def test_a_service_has_no_health_check_with(spec: dict[str, object]) -> None:
    assert health_checks(balanced(**spec), [endpoint_slice("10.0.0.1 here")]) == {}


COUNTS = [
    ("ready endpoints of this node count", ["10.0.0.1 here", "10.0.0.2 there", "10.0.0.3 -"], 1),
    ("draining endpoints do not count, even if they serve", ["10.0.0.1 here draining"], 0),
    ("one that is ready and terminating counts", ["10.0.0.1 here leaving"], 1),
    ("hints do not matter", ["10.0.0.1 here other@", "10.0.0.2 here else#"], 2),
]


@pytest.mark.parametrize(
    ("endpoints", "count"), [pytest.param(*case, id=name) for name, *case in COUNTS]
)
def test_which_endpoints_are_counted(endpoints: list[str], count: int) -> None:
    checks = health_checks(balanced(), [endpoint_slice(*endpoints)])
    assert checks == {4: HealthCheck(31000, count)}


def test_an_address_counts_once_whatever_it_serves() -> None:
    thing = balanced(ports=[HTTP, {"name": "more", "port": 81}])
    ports = ({"name": "http", "port": 8080}, {"name": "more", "port": 8081})
    slices = [
        endpoint_slice("10.0.0.1 here", ports=ports),
        endpoint_slice("10.0.0.1 here", name="web-2", ports=({"name": "more", "port": 9999},)),
        endpoint_slice("10.0.0.2 here", name="web-3", ports=({"name": "else", "port": 1},)),
    ]
    assert health_checks(thing, slices) == {4: HealthCheck(31000, 1)}


def test_each_family_with_a_cluster_ip_has_its_own() -> None:
    thing = balanced(clusterIPs=["10.96.0.1", "fd00::1"], ipFamilies=["IPv4", "IPv6"])
    slices = [endpoint_slice("10.0.0.1 here"), endpoint_slice("fd44::1 there", name="web-2")]
    assert health_checks(thing, slices) == {
        4: HealthCheck(31000, 1),
        6: HealthCheck(31000, 0),
    }


# -- its response --


class Proxy:
    """Listeners on loopback, and the failures that they reported."""

    def __init__(self) -> None:
        self.healthy = True
        self.failures: SimpleQueue[str] = SimpleQueue()
        self.served = ServiceHealthChecks(lambda: self.healthy, self._record)
        self.served.listen_on([pack("127.0.0.1"), pack("::1")])
        self.served.start()

    def _record(self, service: tuple[str, str], text: str) -> None:
        self.failures.put(f"{'/'.join(service)}: {text}")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.served.stop()


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def ask(port: int, host: str = "127.0.0.1", method: str = "GET", path: str = "/") -> HTTPResponse:
    connection = HTTPConnection(host, port, timeout=SECONDS)
    connection.request(method, path)
    answer = connection.getresponse()
    answer.body = answer.read()  # type: ignore[attr-defined]
    connection.close()
    return answer


def refuses(port: int, host: str = "127.0.0.1") -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        return probe.connect_ex((host, port)) != 0


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds that another thread causes."""
    for _ in range(100_000):
        if is_so():
            return
    pytest.fail("the condition did not become true")


def serve(proxy: Proxy, port: int, count: int, family: int = 4) -> None:
    proxy.served.set_checks([(WEB, {family: HealthCheck(port, count)})])


@pytest.mark.parametrize(
    ("count", "healthy", "status"), [(2, True, 200), (0, True, 503), (2, False, 503)]
)
def test_the_response_is_kube_proxys(proxy: Proxy, count: int, healthy: bool, status: int) -> None:
    port, proxy.healthy = free_port(), healthy
    serve(proxy, port, count)
    eventually(lambda: not refuses(port))
    answer = ask(port)
    assert answer.status == status
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Load-Balancing-Endpoint-Weight"] == str(count)
    assert json.loads(answer.body) == {  # type: ignore[attr-defined]
        "service": {"namespace": "default", "name": "web"},
        "localEndpoints": count,
        "serviceProxyHealthy": healthy,
    }


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE"])
def test_any_method_and_path_get_the_response(proxy: Proxy, method: str) -> None:
    port = free_port()
    serve(proxy, port, 1)
    eventually(lambda: not refuses(port))
    assert ask(port, method=method, path="/any/where?at=all").status == 200


def test_a_change_of_the_count_shows_at_once(proxy: Proxy) -> None:
    port = free_port()
    serve(proxy, port, 1)
    eventually(lambda: not refuses(port))
    assert ask(port).status == 200
    serve(proxy, port, 0)
    assert ask(port).status == 503


def test_another_port_closes_the_old_one(proxy: Proxy) -> None:
    first, second = free_port(), free_port()
    serve(proxy, first, 1)
    eventually(lambda: not refuses(first))
    serve(proxy, second, 1)
    eventually(lambda: refuses(first) and not refuses(second))


def test_a_listener_is_closed_with_its_health_check_and_may_come_back(proxy: Proxy) -> None:
    port = free_port()
    serve(proxy, port, 1)
    eventually(lambda: not refuses(port))
    proxy.served.set_checks([(WEB, {})])
    eventually(lambda: refuses(port))
    serve(proxy, port, 1)
    eventually(lambda: not refuses(port))


def test_each_family_listens_by_itself(proxy: Proxy) -> None:
    port = free_port("::1")
    serve(proxy, port, 1, family=6)
    eventually(lambda: not refuses(port, "::1"))
    assert ask(port, "::1").status == 200
    assert refuses(port)


def test_addresses_are_followed(proxy: Proxy) -> None:
    port = free_port()
    serve(proxy, port, 1)
    eventually(lambda: not refuses(port))
    proxy.served.listen_on([pack("127.0.0.2")])
    eventually(lambda: refuses(port) and not refuses(port, "127.0.0.2"))


def test_a_port_in_use_is_reported_once_and_tried_again(proxy: Proxy) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = int(squatter.getsockname()[1])
        serve(proxy, port, 1)
        complaint = proxy.failures.get(timeout=SECONDS)
        assert f"default/web: cannot serve its healthCheckNodePort at 127.0.0.1:{port}" in complaint
    proxy.served.listen_on([pack("127.0.0.1"), pack("::1")])
    eventually(lambda: not refuses(port))
    assert ask(port).status == 200
    assert proxy.failures.empty()


def test_a_silent_client_does_not_hold_up_others(proxy: Proxy) -> None:
    port = free_port()
    serve(proxy, port, 1)
    eventually(lambda: not refuses(port))
    with socket.create_connection(("127.0.0.1", port)) as silent:
        silent.send(b"GET / HT")
        assert ask(port).status == 200


def test_a_request_may_come_in_pieces(proxy: Proxy) -> None:
    port = free_port()
    serve(proxy, port, 1)
    eventually(lambda: not refuses(port))
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as client:
        for piece in (b"GET / HTTP/1.1\r\n", b"Host: x\r\n", b"\r\n"):
            client.send(piece)
        assert client.recv(1024).startswith(b"HTTP/1.1 200 OK\r\n")
