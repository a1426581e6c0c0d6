"""Faults of Services: their traffic, their changes, and tables that become full."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta

from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.devtools.lab.dial import ask, connect
from bpfsvc.devtools.lab.patience import wait
from tests.lab.test_quarantine import GIVES_UP
from tests.lab.testbed import Named
from tests.monitoring.fault import Made, filtered, nothing
from tests.monitoring.scene import (
    FRONTENDS,
    MASQUERADE_PORTS,
    PARTS,
    SHADOWED,
    Scene,
    begin_to_connect,
    described,
)

WRONG = Named("wrong", 81)
SILENT = Named("silent", 82)
BLOCKED = Named("blocked", 83)
NOBODY = Named("nobody", 84)
SICK = Named("sick", 85)
FLAPPING = Named("flapping", 86)
LATE = Named("late", 87)
CROWDED = Named("crowded", 89)
NEAR = Named("near", 90)
EXHAUSTED = Named("exhausted", 91)
LOST = Named("lost", 92)
HUGE = Named("huge", 93)
LOSSY = Named("lossy", 98)
UNEVEN = Named("uneven", 99)

TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
_REJECT = 6
"""The number of the step that refuses packets."""


# -- traffic -------------------------------------------------------------------------------------


def call(scene: Scene, part: str, of: Named, times: int = 2) -> None:
    """Have the client connect to a NodePort, with or without success."""
    for _ in range(times):
        with suppress(OSError):
            ask(scene.lab.client, scene.node(part).address(), of.node_port, options=[GIVES_UP])


@contextmanager
def wrong_target_port(scene: Scene) -> Made:
    """No pod listens at the targetPort."""
    scene.apply(WRONG, scene.lab.pods[:2], 9999)
    yield lambda: call(scene, "web", WRONG)
    scene.apply(WRONG, scene.lab.pods[:2])


@contextmanager
def silent_backend(scene: Scene) -> Made:
    """One of two backends drops SYNs."""
    sick, well = scene.lab.pods[:2]
    scene.apply(SILENT, [sick, well], 8081)
    rule = "tcp dport 8081 tcp flags & (syn|ack) == syn drop"
    with filtered(sick, "silent", "input", rule), ExitStack() as attempts:
        yield lambda: scene.attempt("web", SILENT, attempts, 3)


@contextmanager
def drop_rule_in_forward(scene: Scene) -> Made:
    """A rule of the node drops forwarded packets to the endpoints."""
    scene.apply(BLOCKED, scene.lab.pods[:1], 8082)
    rule = "tcp dport 8082 drop"
    with filtered(scene.node("web"), "blocked", "forward", rule), ExitStack() as attempts:
        yield lambda: scene.attempt("web", BLOCKED, attempts, 2)


@contextmanager
def no_endpoints(scene: Scene) -> Made:
    """Clients use a Service that has none."""
    scene.apply(NOBODY, [])
    yield lambda: call(scene, "web", NOBODY, 3)
    scene.apply(NOBODY, scene.lab.pods[:2])


@contextmanager
def refusing_endpoint(scene: Scene) -> Made:
    """An endpoint refuses connections, and its Service asks for quarantine."""
    sick, well = scene.lab.pods[:2]
    rule = "tcp dport 8083 tcp flags & (syn|ack) == syn reject with tcp reset"
    said = {"bpfsvc.io/quarantine": "2 failures/60s for 20s"}
    scene.apply(SICK, [sick, well], 8083, annotations=said)
    with filtered(sick, "sick", "input", rule):
        yield lambda: call(scene, "web", SICK)


@contextmanager
def lossy_way(scene: Scene) -> Made:
    """Every other SYN to the backends is lost; it is sent again after a second."""
    backend, client = scene.lab.pods[1], scene.node("web")
    scene.apply(LOSSY, [backend], 8084)
    rule = "tcp dport 8084 tcp flags & (syn|ack) == syn numgen inc mod 2 0 drop"
    to = (LOSSY.vip(4), 80)
    with filtered(backend, "lossy", "input", rule), ExitStack() as attempts:
        yield lambda: begin_to_connect(client, to, attempts, 2)


@contextmanager
def uneven_connections(scene: Scene) -> Made:
    """A Service gets more backends while its clients keep the connections that they have."""
    old, *new = scene.lab.pods
    scene.apply(UNEVEN, [old])
    to = (scene.node("web").address(), UNEVEN.node_port)
    wait(lambda: answers(scene, to), "the Service answers", 30)
    with ExitStack() as clients:
        for _ in range(60):
            clients.enter_context(connect(scene.lab.client, *to))
        scene.apply(UNEVEN, [old, *new])
        yield nothing


def use_lossy(scene: Scene) -> None:
    """Have a process of the node connect."""
    with suppress(OSError):
        ask(scene.node("web"), LOSSY.vip(4), 80, options=[GIVES_UP])


@contextmanager
def missing_step(scene: Scene) -> Made:
    """Another program takes one of our programs out of a map of programs."""
    node = scene.node("small")
    current = PinRoot(node.pin_root).current
    scene.apply(LOST, [])
    words = ("pinned", current / "maps" / "steps", "key", str(_REJECT), "0", "0", "0")
    node.run(["bpftool", "map", "delete", *words])
    with ExitStack() as attempts:
        yield lambda: scene.attempt("small", LOST, attempts, 3)
    program = ("value", "pinned", current / "programs" / "step_reject")
    node.run(["bpftool", "map", "update", *words, *program])


@contextmanager
def stale_kube_proxy(scene: Scene) -> Made:
    """kube-proxy leads a connection to a pod that is no longer an endpoint: a single one."""
    scene.apply(SHADOWED, scene.lab.pods[:1])
    client = scene.lab.pods[PARTS.index("shadow")]

    def use_until_it_differs() -> None:
        before = scene.metric("shadow", "bpfsvc_shadow_flows_total")
        if "bpfsvc_shadow_differences_total{" in scene.metrics("shadow"):
            return
        ask(client, SHADOWED.vip(4), 80)
        wait(
            lambda: scene.metric("shadow", "bpfsvc_shadow_flows_total") > before,
            "the connection has been compared",
        )

    yield use_until_it_differs
    scene.apply(SHADOWED, scene.lab.pods[:2])


# -- changes -------------------------------------------------------------------------------------


@contextmanager
def flapping_readiness(scene: Scene) -> Made:
    """Endpoints leave and come back, again and again."""
    pods = scene.lab.pods[:4]
    turns = [pods[:1], pods]

    def turn() -> None:
        turns.append(turns.pop(0))
        scene.apply(FLAPPING, turns[0])

    yield turn


@contextmanager
def late_controllers(scene: Scene) -> Made:
    """Agents are told of changes 25 s after their cause."""
    turns = 0

    def change() -> None:
        nonlocal turns
        turns += 1
        made, *slices = described(LATE, scene.lab.pods[: 1 + turns % 2])
        for one_slice in slices:
            cause = datetime.now(UTC) - timedelta(seconds=25)
            one_slice["metadata"]["annotations"] = {TRIGGER: cause.isoformat()}
        scene.cluster.put(LATE.name, made, *slices)

    yield change


@contextmanager
def unreadable_object(scene: Scene) -> Made:
    """A slice has an address that is none."""
    made, broken = described(Named("unreadable", 97), scene.lab.pods[:1])
    broken["endpoints"][0]["addresses"] = ["10.244.1.300"]
    scene.cluster.put("unreadable", made, broken)
    yield nothing
    scene.cluster.drop("unreadable")


@contextmanager
def full_map(scene: Scene) -> Made:
    """A Service needs more entries than a map of the small node has room for."""
    many = [f"80.11.12.{number}" for number in range(1, FRONTENDS)]
    scene.apply(HUGE, scene.lab.pods[:1], externalIPs=many)
    yield nothing
    scene.cluster.drop(HUGE.name)


# -- pressure ------------------------------------------------------------------------------------


@contextmanager
def too_many_connections(scene: Scene) -> Made:
    """Clients hold connections, and connect though the table is full."""
    scene.apply(CROWDED, scene.lab.pods[:1])
    with ExitStack() as attempts:
        yield lambda: scene.attempt("small", CROWDED, attempts, 6)


@contextmanager
def many_source_ports(scene: Scene) -> Made:
    """Of the ports to one backend all but one are in use."""
    scene.apply(NEAR, scene.lab.pods[:1])
    to = (scene.node("canary").address(), NEAR.node_port)
    wait(lambda: answers(scene, to), "the Service answers", 30)
    with ExitStack() as held:

        def holds_one_more() -> bool:
            # The port of a connection before may be free only after some seconds.
            with suppress(OSError), ExitStack() as attempt:
                opened = connect(scene.lab.client, *to, options=[GIVES_UP])
                attempt.callback(opened.reset)
                opened.who()
                held.push(attempt.pop_all())
                return True
            return False

        for _ in range(MASQUERADE_PORTS - 1):
            wait(holds_one_more, "a connection more is held", 30)
        yield nothing


@contextmanager
def too_few_source_ports(scene: Scene) -> Made:
    """Clients connect though all ports to the backend are in use."""
    scene.apply(EXHAUSTED, scene.lab.pods[1:2])
    with ExitStack() as attempts:
        yield lambda: scene.attempt("canary", EXHAUSTED, attempts, 4)


def answers(scene: Scene, to: tuple[str, int]) -> bool:
    """True if a pod answers the client."""
    with suppress(OSError):
        ask(scene.lab.client, *to, options=[GIVES_UP])
        return True
    return False


@contextmanager
def full_conntrack(scene: Scene) -> Made:
    """netfilter follows nearly as many flows as it can: UDP packets within the node."""
    node = scene.node("stuck")
    filled_at = 0.0

    def fill() -> None:
        nonlocal filled_at
        # An unanswered flow is followed for 30 s.
        if filled_at and time.monotonic() < filled_at + 15:
            return
        filled_at = time.monotonic()
        limit = scene.metric("stuck", "bpfsvc_nf_conntrack_entries_limit")
        with node.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for number in range(int(0.9 * limit)):
                host, to = divmod(number, 60_000)
                with suppress(OSError):
                    sender.sendto(b"", (f"127.0.0.{host + 1}", to + 1))

    with filtered(node, "followed", "input", "ct state established accept"):
        wait(lambda: _is_followed(scene), "the agent sees that netfilter follows flows", 30)
        yield fill
        node.run(["conntrack", "-F"])


def _is_followed(scene: Scene) -> bool:
    with suppress(ValueError):
        return scene.metric("stuck", "bpfsvc_nf_conntrack_entries_limit") > 0
    return False
