"""Health checks on ports that kube-proxy is bound to as well, before, meanwhile and afterwards."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from json import JSONDecodeError
from socketserver import ThreadingTCPServer

import pytest

from bpfsvc.base.address import pack
from bpfsvc.base.errors import UsageError
from bpfsvc.datapath.steering import Steering
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.http.healthz import Health, HealthServer
from bpfsvc.http.service_health import ServiceHealthChecks
from bpfsvc.inspect.status import ask_health
from bpfsvc.services.rules.view import HealthCheck
from tests.http.asking import ask, body

HOSTS = ("127.0.0.1", "::1")
ELSEWHERE = "127.0.0.2"
"""An address of this node that the kubelet's probes do not ask."""

WEB = ("default", "web")
ANY = (pack("0.0.0.0"), pack("::"))

ASKED_SECONDS = 1.0
"""How long the agent waits for a program to say whose port it has."""


class KubeProxy(BaseHTTPRequestHandler):
    """As much of kube-proxy's two kinds of health checks as tells who answers."""

    def do_GET(self) -> None:
        """Answer /healthz, /livez and a Service's check in its words."""
        if self.path in ("/healthz", "/livez"):
            found: object = {"lastUpdated": "now", "currentTime": "now"}
        elif self.path == "/":
            found = {"service": {"namespace": "default", "name": "web"}, "localEndpoints": 7}
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Stranger(KubeProxy):
    """A program that has nothing to do with Services."""

    def do_GET(self) -> None:
        """Answer anything."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")


class _DualStack(ThreadingTCPServer):
    """A server that is bound as Go's are: to the wildcard of both families."""

    address_family = socket.AF_INET6
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def server_bind(self) -> None:
        """Bind for both families."""
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


@contextmanager
def bound(handler: type[KubeProxy], port: int = 0) -> Iterator[int]:
    """Run a server; yield its port."""
    with _DualStack(("::", port), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield int(server.server_address[1])
        server.shutdown()


@contextmanager
def held(host: str) -> Iterator[int]:
    """Hold a port by a socket that accepts connections and sends nothing; yield the port."""
    with socket.create_server((host, 0), family=family_of(host)) as listener:
        yield int(listener.getsockname()[1])


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


@pytest.fixture
def steering() -> Iterator[Steering]:
    made = Steering()
    yield made
    made.close()


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def agent(port: int, steering: Steering, ending: ExitStack) -> Health:
    """Return the health of an agent that starts, and serves it at a port."""
    health = Health()
    server = HealthServer(("0.0.0.0", port), health, print, steered=steering.listen())
    server.start()
    ending.callback(server.stop)
    return health


def checks(
    port: int, steering: Steering, ending: ExitStack, failed: Callable[[str], None] = pytest.fail
) -> ServiceHealthChecks:
    """Return the health checks of an agent, of one Service with three endpoints."""
    made = ServiceHealthChecks(lambda: True, lambda _, text: failed(text), steering.listen())
    made.set_checks([(WEB, {4: HealthCheck(port, 3), 6: HealthCheck(port, 3)})])
    made.listen_on(ANY)
    made.start()
    ending.callback(made.stop)
    return made


def count(port: int, host: str = "127.0.0.1") -> int:
    """Return the number of endpoints that the answer names: 3 if it is ours, 7 if kube-proxy's."""
    return int(json.loads(body(ask(port, "/", host=host)))["localEndpoints"])


def is_ours(port: int, path: str = "/healthz", host: str = "127.0.0.1") -> bool:
    return b"\r\nServer: bpfsvc\r\n" in ask(port, path, host=host)


# -- /healthz --


@pytest.mark.parametrize("host", HOSTS)
def test_probes_ask_the_agent_while_kube_proxy_holds_the_port(
    host: str, steering: Steering, ending: ExitStack
) -> None:
    """Before the agent is there, kube-proxy knows no such path, and so the probe fails."""
    port = ending.enter_context(bound(KubeProxy))
    assert ask(port, "/bpfsvc/livez", host=host).startswith(b"HTTP/1.0 404")
    health = agent(port, steering, ending)
    assert ask(port, "/bpfsvc/livez", host=host).startswith(b"HTTP/1.1 200")
    assert ask(port, "/bpfsvc/healthz", host=host).startswith(b"HTTP/1.1 503")
    health.clear_problem("start")
    assert ask(port, "/bpfsvc/healthz", host=host).startswith(b"HTTP/1.1 200")


def test_load_balancers_get_kube_proxys_answer_until_the_agent_has_started(
    steering: Steering, ending: ExitStack
) -> None:
    port = ending.enter_context(bound(KubeProxy))
    health = agent(port, steering, ending)
    assert not is_ours(port, host=ELSEWHERE)
    health.clear_problem("start")
    assert is_ours(port, host=ELSEWHERE)


def test_kube_proxy_can_be_bound_to_a_port_that_the_agent_serves(
    steering: Steering, ending: ExitStack
) -> None:
    """On the way back: it gets the connections when the agent ends, without trying again."""
    with bound(KubeProxy) as port:
        pass
    with ExitStack() as running:
        agent(port, steering, running)
        assert is_ours(port, host=ELSEWHERE)
        ending.enter_context(bound(KubeProxy, port))
        assert is_ours(port, host=ELSEWHERE)
    assert not is_ours(port, host=ELSEWHERE)


def test_the_port_of_another_program_stays_its_own(steering: Steering, ending: ExitStack) -> None:
    port = ending.enter_context(bound(Stranger))
    agent(port, steering, ending)
    assert body(ask(port, "/healthz")) == b"hello"


def test_a_taken_port_is_an_error_for_who_wants_it(steering: Steering, ending: ExitStack) -> None:
    """``bindAddressHardFail``."""
    port = ending.enter_context(bound(Stranger))
    server = HealthServer(
        ("0.0.0.0", port), Health(), print, steered=steering.listen(), hard_fail=True
    )
    ending.callback(server.stop)
    with pytest.raises(UsageError):
        server.start()


def test_status_takes_only_an_agents_answer_for_its_health(
    steering: Steering, ending: ExitStack
) -> None:
    port = ending.enter_context(bound(KubeProxy))
    answer = ask_health(("0.0.0.0", port))
    assert (answer.status, answer.foreign) == (0, True)
    agent(port, steering, ending)
    answer = ask_health(("0.0.0.0", port))
    assert (answer.status, answer.foreign) == (503, False)


# -- health checks of Services --


@pytest.mark.parametrize("host", HOSTS)
def test_a_services_check_goes_from_kube_proxy_to_the_agent_and_back(
    host: str, steering: Steering, ending: ExitStack
) -> None:
    port = ending.enter_context(bound(KubeProxy))
    assert count(port, host) == 7
    with ExitStack() as running:
        checks(port, steering, running)
        wait(lambda: count(port, host) == 3, "the agent to answer")
    assert count(port, host) == 7


def test_another_program_keeps_its_port_and_the_service_is_named(
    steering: Steering, ending: ExitStack
) -> None:
    port = ending.enter_context(bound(Stranger))
    failures: list[str] = []
    checks(port, steering, ending, failures.append)
    wait(lambda: len(failures) == 2, "two reports")
    assert all("Address already in use" in failure for failure in failures)
    assert body(ask(port, "/")) == b"hello"


def test_programs_that_hold_ports_and_never_answer_hold_up_no_other_check(
    steering: Steering, ending: ExitStack
) -> None:
    """As a kube-proxy that hangs: it is asked whose port it is, and the others are served."""
    silent = [ending.enter_context(held("127.0.0.1")) for _ in range(10)]
    with held("127.0.0.1") as port:
        pass
    failures: list[str] = []
    made = ServiceHealthChecks(
        lambda: True, lambda service, _: failures.append(service[1]), steering.listen()
    )
    services = [(("default", f"silent-{number}"), number) for number in silent]
    made.set_checks([(key, {4: HealthCheck(number, 1)}) for key, number in services])
    made.set_checks([(WEB, {4: HealthCheck(port, 3)})])
    made.listen_on(ANY)
    made.start()
    ending.callback(made.stop)
    longest = 0.0

    def are_all_reported() -> bool:
        nonlocal longest
        began = time.monotonic()
        with suppress(ConnectionRefusedError):
            assert count(port) == 3
        longest = max(longest, time.monotonic() - began)
        return len(failures) == len(silent)

    wait(are_all_reported, "a report for each silent program")
    assert set(failures) == {name for (_, name), _ in services}
    assert count(port) == 3
    assert longest < ASKED_SECONDS / 2


@pytest.mark.parametrize(("taken", "free"), [HOSTS, HOSTS[::-1]])
def test_a_port_that_another_program_holds_in_one_family_is_served_in_the_other(
    taken: str, free: str, steering: Steering, ending: ExitStack
) -> None:
    port = ending.enter_context(held("0.0.0.0" if taken == "127.0.0.1" else "::"))
    failures: list[str] = []
    checks(port, steering, ending, failures.append)
    wait(lambda: bool(failures), "a report")
    assert count(port, free) == 3
    assert len(failures) == 1


def test_a_closed_check_is_kube_proxys_again(steering: Steering, ending: ExitStack) -> None:
    port = ending.enter_context(bound(KubeProxy))
    made = checks(port, steering, ending)
    wait(lambda: count(port) == 3, "the agent to answer")
    made.set_checks([(WEB, {})])

    def is_kube_proxys() -> bool:
        # Who has connected when the check is closed gets no answer, as from any that is closed.
        with suppress(ConnectionResetError, JSONDecodeError):
            return count(port) == 7
        return False

    wait(is_kube_proxys, "kube-proxy to answer")


def test_no_client_goes_without_an_answer_while_agents_come_and_go(
    steering: Steering, ending: ExitStack
) -> None:
    """Asked without a pause, from two threads."""
    port = ending.enter_context(bound(KubeProxy))
    stop = threading.Event()
    answers: list[int] = []
    errors: list[str] = []

    def wait_for(answer: int) -> None:
        seen = len(answers)
        wait(lambda: answer in answers[seen:] or bool(errors), f"the answer {answer}")

    def go_on_asking() -> None:
        while not stop.is_set():
            try:
                answers.append(count(port))
            except (OSError, ValueError) as error:
                errors.append(repr(error))

    askers = [threading.Thread(target=go_on_asking, daemon=True) for _ in range(2)]
    for each in askers:
        each.start()
    for _ in range(10):
        with ExitStack() as running:
            checks(port, steering, running)
            wait_for(3)
        wait_for(7)
    stop.set()
    for asker in askers:
        asker.join()
    assert errors == []
    assert {3, 7} == set(answers)
