"""Endpoints that refuse connections, or do not answer, leave for a while: with real sockets.

Of a pod that its node knows, sockets are translated and no packets are (``pod``); of the node too
(``node``); a client outside, and a pod's socket that is bound to a port, go by tc.
"""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from bpfsvc.devtools.lab.dial import OpenConnection, Reply, connect
from bpfsvc.devtools.lab.http_request import http_request
from bpfsvc.devtools.lab.objects import Object
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.known_pods import by_packets, make_known
from tests.lab.testbed import ONE, Named, Testbed, built_testbed, objects

SICK = Named("sick", 73)
WHERE = ("pod", "bound pod", "node", "client")
RULE = "2 failures/60s for 8s"
"""Long enough to look at an endpoint in quarantine, on a busy machine too."""
PORTS = itertools.count(20_000)
GIVES_UP = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2500)
"""In ms: the second SYN leaves after 1 s; the third after 2 s, before Linux 6.5 after 3 s."""

NOTE = "add @clients { tcp sport }"
"""Clients are counted by their ports: how often they repeat a SYN depends on the kernel."""
REFUSE = f"tcp dport 8080 tcp flags & (syn|ack) == syn {NOTE} reject with tcp reset"
SILENT = f"tcp dport 8080 tcp flags & (syn|ack) == syn {NOTE} drop"


@contextmanager
def sick_testbed(rule: str) -> Iterator[Testbed]:
    """A lab with an API server; the first pod is a client, the others are backends."""
    with built_testbed(served=True, holds_pods=True, layout="routed") as testbed:
        others = zip(ONE, testbed.lab.pods, strict=True)
        every = [made for one, pod in others for made in objects(one, [pod])]
        testbed.cluster.put("others", *every)
        testbed.cluster.put("sick", *of_pods(testbed, rule))
        testbed.cluster.start()
        make_known(testbed)
        yield testbed


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """Such a lab whose Service wants quarantine."""
    with sick_testbed(RULE) as testbed:
        yield testbed


def backends(testbed: Testbed) -> list[LabPod]:
    """Return a pod of each node."""
    return testbed.lab.pods[1:3]


def of_pods(testbed: Testbed, rule: str = RULE) -> list[Object]:
    said = {"bpfsvc.io/quarantine": rule} if rule else {}
    return objects(SICK, backends(testbed), annotations=said)


@contextmanager
def broken(pod: LabPod, rule: str) -> Iterator[Callable[[], None]]:
    """Have a pod refuse or ignore SYNs, until the function that is returned is called."""
    pod.run(["nft", "add table inet sick"])
    pod.run(["nft", "add set inet sick clients { type inet_service; size 65535; flags dynamic; }"])
    pod.run(["nft", "add chain inet sick in { type filter hook input priority 0; }"])
    pod.run(["nft", f"add rule inet sick in {rule}"])
    broken = True

    def heal() -> None:
        nonlocal broken
        if broken:
            pod.run(["nft", "delete table inet sick"])
        broken = False

    try:
        yield heal
    finally:
        heal()


def call(testbed: Testbed, where: str, family: int, *, patient: bool = False) -> OpenConnection:
    """Connect through the Service.

    If it is not patient, a client gives up by itself after the second SYN. The limits of the lab
    become longer on a slow machine, but how long an endpoint is left out does not: it would be back
    before the state is looked at.
    """
    if where == "client":
        to = (testbed.node.address(family), SICK.node_port)
    else:
        to = (SICK.vip(family), 80)
    namespace = getattr(testbed, where.removeprefix("bound "))
    source = ("", next(PORTS)) if where.startswith("bound") else None
    options, timeout = ([], 15.0) if patient else ([GIVES_UP], 3.0)
    return connect(namespace, *to, source=source, options=options, timeout=timeout)


def ask(testbed: Testbed, where: str, family: int) -> Reply:
    with call(testbed, where, family) as opened:
        return opened.who()


def states(testbed: Testbed, family: int) -> dict[str, str]:
    """Return the state of each backend, as ``bpfsvc services`` shows it."""
    shown = testbed.cluster.command(testbed.node, "services", f"{SICK.name}:web", "-o", "json")
    (port,) = (
        service
        for service in json.loads(shown.stdout)["services"]
        if service["family"] == f"IPv{family}"
    )
    return {backend["address"]: backend["state"] for backend in port["backends"]}


def try_until(testbed: Testbed, where: str, pod: LabPod, family: int, wanted: str) -> None:
    """Open connections until a backend has a state."""

    def reached() -> bool:
        with suppress(OSError):
            ask(testbed, where, family)
        return states(testbed, family)[pod.address(family)] == wanted

    wait(reached, f"{pod.name} is {wanted}", timeout=60)


@pytest.fixture(autouse=True)
def all_well(running: Testbed) -> None:
    """Begin with a Service that knows nothing of former tests."""
    running.cluster.apply("sick", *of_pods(running, ""))
    running.cluster.apply("sick", *of_pods(running))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [REFUSE, SILENT], ids=["refuses", "is silent"])
@pytest.mark.parametrize("where", WHERE)
def test_a_backend_leaves_and_comes_back(
    running: Testbed, where: str, rule: str, family: int
) -> None:
    sick, well = backends(running)
    kept = open_to(running, where, sick, family)
    with kept, broken(sick, rule) as heal:
        try_until(running, where, sick, family, "quarantined")
        assert {ask(running, where, family).pod for _ in range(10)} == {well.name}
        assert kept.echo(b"open connections go on")
        heal()
        try_until(running, where, sick, family, "ready")
    seen = {ask(running, where, family).pod for _ in range(40)}
    assert seen == {sick.name, well.name}


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "family"), [(REFUSE, 6), (SILENT, 4)], ids=["refuses", "silent"])
@pytest.mark.parametrize("where", WHERE)
def test_of_many_clients_at_once_one_is_the_trial(
    running: Testbed, where: str, rule: str, family: int
) -> None:
    """Of a silent endpoint tc moves that one to another, so that it only waits a second."""
    sick, well = backends(running)
    with broken(sick, rule):
        try_until(running, where, sick, family, "quarantined")
        wait(lambda: states(running, family)[sick.address(family)] == "trial", "it is on trial")
        before = met(sick)
        with ThreadPoolExecutor(20) as clients:
            found = list(clients.map(lambda _: pod_of(running, where, family), range(20)))
        fails = rule == REFUSE or where == "node"
        assert found.count("") == fails
        assert found.count(well.name) == 20 - fails
        assert len(met(sick) - before) == 1
        wait(
            lambda: states(running, family)[sick.address(family)] == "quarantined",
            "it is out again",
        )


def pod_of(testbed: Testbed, where: str, family: int) -> str:
    """Return the pod that answers a new client; "" if it fails."""
    with suppress(OSError):
        return ask(testbed, where, family).pod
    return ""


def met(pod: LabPod) -> set[int]:
    """Return the source ports of the clients whose SYNs a broken pod has got since it is broken."""
    listed = json.loads(pod.run(["nft", "-j", "list", "set", "inet", "sick", "clients"]).stdout)
    (clients,) = (nftable["set"] for nftable in listed["nftables"] if "set" in nftable)
    return set(clients.get("elem", []))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["bound pod", "client"])
def test_who_waits_for_a_silent_endpoint_is_moved_when_that_is_in_quarantine(
    running: Testbed, where: str, family: int
) -> None:
    sick, well = backends(running)
    with broken(sick, SILENT), ThreadPoolExecutor(12) as clients:

        def patient(_: int) -> str:
            with call(running, where, family, patient=True) as opened:
                return opened.who().pod

        assert set(clients.map(patient, range(12))) == {well.name}
    assert metric(running, "bpfsvc_connections_moved_total") > 0


def open_to(testbed: Testbed, where: str, pod: LabPod, family: int) -> OpenConnection:
    """Return an open connection to a pod through the Service, by the path that is to be tested."""
    for _ in range(100):
        opened = call(testbed, where, family)
        answer = opened.who()
        if answer.pod == pod.name:
            assert bool(by_packets(testbed.node, answer.own)) is (where in ("bound pod", "client"))
            return opened
        opened.close()
    raise AssertionError(f"no connection to {pod.name}")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["pod", "node", "client"])
def test_the_last_one_stays(running: Testbed, where: str) -> None:
    first, second = backends(running)
    with broken(first, REFUSE), broken(second, REFUSE):
        for _ in range(40):
            with pytest.raises(ConnectionRefusedError):
                call(running, where, 4)
        wait(lambda: "quarantined" in states(running, 4).values(), "one leaves")
        for _ in range(20):
            with suppress(OSError):
                call(running, where, 4).close()
        found = list(states(running, 4).values())
    assert sorted(found)[0] == "quarantined"
    assert found.count("quarantined") == 1


def test_without_the_annotation_a_backend_stays_and_nothing_listens_to_sockets(
    running: Testbed,
) -> None:
    pin = running.node.pin_root / "links" / "sockops"
    assert pin.exists()
    running.cluster.apply("sick", *of_pods(running, ""))
    assert not pin.exists()
    sick, _ = backends(running)
    with broken(sick, REFUSE):
        for _ in range(40):
            with suppress(ConnectionRefusedError):
                call(running, "client", 4).close()
        assert states(running, 4)[sick.address(4)] == "ready"


@pytest.mark.slow
def test_it_is_told_by_events_a_line_of_the_log_and_metrics(running: Testbed) -> None:
    sick, _ = backends(running)
    agent = running.cluster.agents[running.node.name]
    endpoint = f"{sick.address(4)}:8080"
    with broken(sick, REFUSE) as heal:
        try_until(running, "client", sick, 4, "quarantined")
        agent.expect(f"to connect to endpoint {endpoint} failed within 60 s: it gets no new")
        assert metric(running, "bpfsvc_endpoints_quarantined") == 1
        assert metric(running, "bpfsvc_endpoint_quarantines_total") >= 1
        asking = ("--from", "pod", running.pod.address(4), "TCP", f"{SICK.vip(4)}:80")
        explained = running.cluster.command(running.node, "explain", *asking).stdout
        assert f"{endpoint} is not chosen: connections to it failed (quarantine)" in explained
        heal()
        try_until(running, "client", sick, 4, "ready")
    agent.expect(f"endpoint {endpoint} is back: a connection to it was established")
    assert metric(running, "bpfsvc_endpoints_quarantined") == 0
    wait(lambda: {"EndpointQuarantined", "EndpointBack"} <= reasons(running), "both are Events")


def metric(testbed: Testbed, name: str) -> float:
    _, text = http_request(testbed.node, "127.0.0.1", 10249, "/metrics")
    (line,) = (line for line in text.decode().splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


def reasons(testbed: Testbed) -> set[str]:
    events = [record.raw() for record in testbed.cluster.api.store.all("Event")]
    return {event["reason"] for event in events if event["regarding"]["name"] == SICK.name}


@pytest.mark.slow
def test_an_agent_that_begins_knows_of_no_quarantine(running: Testbed) -> None:
    sick, _ = backends(running)
    with broken(sick, REFUSE):
        try_until(running, "client", sick, 4, "quarantined")
        running.cluster.kill(running.node)
        assert states(running, 4)[sick.address(4)] == "quarantined"
        running.cluster.start(running.node)
        wait(lambda: states(running, 4)[sick.address(4)] == "ready", "all are used again")
        try_until(running, "client", sick, 4, "quarantined")
