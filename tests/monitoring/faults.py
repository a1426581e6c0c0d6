"""One fault for each alert, made on real packets and real agents, and mended.

A fault is a context manager: it is made on entry and mended on exit. What it yields is done again
and again while the fault lasts: the traffic that meets it, or the fault itself if it is a repeated
one. A row may name what clients do while the alert is awaited to end.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base import address
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.lab.dial import ask, connect
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.test_quarantine import GIVES_UP
from tests.lab.testbed import Named
from tests.monitoring.scene import (
    CANARY,
    FACTOR,
    FRONTENDS,
    MASQUERADE_PORTS,
    PARTS,
    ROLLOUT_FACTOR,
    SHADOWED,
    Scene,
    begin_to_connect,
    described,
    replace,
)

Act = Callable[[], object]
Made = Iterator[Act]

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
WAITING = Named("waiting", 94)
SLOW = Named("slow", 95)
ASTRAY = Named("astray", 96)
LOSSY = Named("lossy", 98)

TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
_REJECT = 6
"""The number of the step that refuses packets."""


class Fault(NamedTuple):
    """A row: the alerts that fire, the fault that makes them fire, and labels that they have."""

    alerts: tuple[str, ...]
    made: Callable[[Scene], AbstractContextManager[Act]]
    labels: Mapping[str, str] = {}
    part: str = ""
    """The part of the node whose agent the alert names."""
    after: Callable[[Scene], object] = lambda _: None
    """What clients do while the alert is awaited to end."""
    factor: int = FACTOR

    def is_told_by(self, alert: Mapping[str, str], instance: str) -> bool:
        """True for the labels of an alert of this fault; one that sums up has fewer labels."""
        wanted = {**self.labels, **({"instance": instance} if instance else {})}
        return alert["alertname"] in self.alerts and all(
            alert.get(name, value) == value for name, value in wanted.items()
        )


def nothing() -> None:
    """Do no more than the fault itself."""


# -- traffic -------------------------------------------------------------------------------------


def call(scene: Scene, part: str, of: Named, times: int = 2) -> None:
    """Have the client connect to a NodePort, with or without success."""
    for _ in range(times):
        with suppress(OSError):
            ask(scene.lab.client, scene.node(part).address(), of.node_port, options=[GIVES_UP])


@contextmanager
def filtered(host: LabNode | LabPod, name: str, hook: str, rule: str) -> Iterator[None]:
    """Have netfilter of a node or a pod act on packets, until the end of the block."""
    host.run(["nft", f"add table inet {name}"])
    host.run(["nft", f"add chain inet {name} c {{ type filter hook {hook} priority 0; }}"])
    host.run(["nft", f"add rule inet {name} c {rule}"])
    try:
        yield
    finally:
        host.run(["nft", f"delete table inet {name}"])


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


# -- agents --------------------------------------------------------------------------------------

_CONTINUE, _DETACH, _SEIZE, _INTERRUPT = 7, 17, 0x4206, 0x4207
"""Requests of ptrace(2)."""

_EVERY_THREAD = 0x40000000
"""__WALL of waitpid(2)."""

_PENDING = "bpfsvc_oldest_pending_change_age_seconds"


def _trace(request: int, thread: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(ctypes.c_long(request), ctypes.c_long(thread), None, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def stuck(scene: Scene, part: str) -> Iterator[None]:
    """Stop the thread of an agent that writes to the kernel, as a hung disk would.

    The thread must hold no lock that the metrics need, so it is stopped anew until they come.
    """
    thread = scene.cluster.agents[scene.node(part).name].process.pid
    _trace(_SEIZE, thread)
    try:
        while not _stopped(scene, part, thread):
            _trace(_CONTINUE, thread)
            wait(lambda: _speaks(scene, part), "the agent has metrics", 30)
        yield
    finally:
        _trace(_DETACH, thread)


def _stopped(scene: Scene, part: str, thread: int) -> bool:
    """Stop a thread that waits for something; True if the others go on."""
    status = Path(f"/proc/{thread}/task/{thread}/stat")
    wait(lambda: status.read_text().rpartition(")")[2].split()[0] == "S", "the thread waits", 30)
    _trace(_INTERRUPT, thread)
    os.waitpid(thread, _EVERY_THREAD)
    return _speaks(scene, part)


def _speaks(scene: Scene, part: str) -> bool:
    with suppress(OSError):
        scene.metric(part, _PENDING)
        return True
    return False


@contextmanager
def thread_that_hangs(scene: Scene) -> Made:
    """An agent receives changes and writes none."""
    with stuck(scene, "stuck"):
        scene.apply(WAITING, scene.lab.pods[:1])
        yield nothing


@contextmanager
def thread_that_is_slow(scene: Scene) -> Made:
    """Each change of an agent waits for more than two seconds."""
    turns = 0

    def change() -> None:
        nonlocal turns
        turns += 1
        with stuck(scene, "small"):
            scene.apply(SLOW, scene.lab.pods[: 1 + turns % 2])
            # The agent may be mute after all, and is asked again by the next change.
            with suppress(OSError):
                wait(lambda: scene.metric("small", _PENDING) > 2.5, "the change has waited", 5)

    yield change


@contextmanager
def removed_pins(scene: Scene) -> Made:
    """Another program removes the pins."""
    shutil.rmtree(scene.node("web").pin_root)
    yield nothing


@contextmanager
def changed_entries(scene: Scene) -> Made:
    """Another program removes entries of a map."""
    scene.apply(ASTRAY, scene.lab.pods[:1])
    node = scene.node("canary")
    scene.cluster.await_entry(node, ASTRAY.vip(4), 80, timeout=30)

    def remove() -> None:
        pinned = Pinned(PinRoot(node.pin_root).current)
        try:
            key = pinned.layout.maps["frontends"].key.pack(
                {"address": address.pack(ASTRAY.vip(4)), "port": 80, "protocol": 6}
            )
            pinned.map("frontends").delete(key)
        finally:
            pinned.close()

    yield remove


@contextmanager
def another_version(scene: Scene) -> Made:
    """A canary was forgotten."""
    yield nothing
    text, other = CANARY["bpfsvc/__init__.py"]
    replace(scene.canary / "bpfsvc" / "__init__.py", other, text)
    scene.cluster.stop(scene.node("canary"))
    scene.launch("canary")
    scene.ready("canary")


@contextmanager
def boot_without_api_server(scene: Scene) -> Made:
    """A node boots and cannot reach the API server."""
    node = scene.node("cut_off")
    scene.cluster.stop(node)
    assert scene.cluster.snapshot_file(node).exists()
    scene.cluster.command(node, "cleanup")
    with filtered(node, "cut", "output", "tcp dport 6443 reject with tcp reset"):
        scene.launch("cut_off", "--last-good-after", "500ms")
        yield nothing


@contextmanager
def crashes(scene: Scene) -> Made:
    """An agent ends and is started again, as often as Prometheus sees that."""
    node, seen = scene.node("restarted"), ""
    started = f'process_start_time_seconds{{instance="{scene.instance("restarted")}"}}'

    def restart() -> None:
        nonlocal seen
        result = scene.servers[FACTOR].get("query", query=started)["result"]
        if result and (at := result[0]["value"][1]) != seen:
            seen = at
            scene.cluster.agents.pop(node.name).end(signal.SIGKILL)
            scene.launch("restarted")

    yield restart


@contextmanager
def no_agents(scene: Scene) -> Made:
    """All agents end."""
    for part in PARTS:
        scene.cluster.kill(scene.node(part))
    yield nothing
    scene.launch("web")


SIDE_BY_SIDE = (
    Fault(("BpfsvcAgentRestarts",), crashes, part="restarted"),
    Fault(("BpfsvcVersionsDiffer",), another_version, factor=ROLLOUT_FACTOR),
    Fault(
        ("BpfsvcApiServerLost", "BpfsvcServingLastGood"), boot_without_api_server, part="cut_off"
    ),
    Fault(("BpfsvcProgramsRemoved",), removed_pins, part="web"),
    Fault(("BpfsvcDrift",), changed_entries, part="canary"),
    Fault(("BpfsvcProgrammingStale",), thread_that_hangs, part="stuck"),
    Fault(("BpfsvcProgrammingSlow", "BpfsvcWatchSlow"), late_controllers),
    Fault(("BpfsvcWritesSlow",), thread_that_is_slow, part="small"),
    Fault(("BpfsvcObjectsUnreadable",), unreadable_object, part="web"),
    Fault(("BpfsvcEndpointsFlap",), flapping_readiness),
    Fault(("BpfsvcServicesRefused",), full_map, part="small"),
    Fault(
        ("BpfsvcMapNearlyFull", "BpfsvcConnectionsFull"),
        too_many_connections,
        {"map": "connections"},
        part="small",
    ),
    Fault(("BpfsvcConntrackNearlyFull",), full_conntrack, part="stuck"),
    Fault(("BpfsvcPortsNearlyExhausted",), many_source_ports, part="canary"),
    Fault(("BpfsvcPortsExhausted",), too_few_source_ports, part="canary"),
    Fault(("BpfsvcPacketsDropped",), missing_step, {"reason": "step_missing"}, part="small"),
    Fault(
        ("BpfsvcBackendsFail",),
        wrong_target_port,
        {"name": WRONG.name},
        after=lambda scene: call(scene, "web", WRONG),
    ),
    Fault(("BpfsvcBackendsFail",), silent_backend, {"name": SILENT.name}),
    Fault(("BpfsvcBackendsFail",), drop_rule_in_forward, {"name": BLOCKED.name}),
    Fault(("BpfsvcConnectsSlow",), lossy_way, {"name": LOSSY.name}, after=use_lossy),
    Fault(
        ("BpfsvcServiceWithoutEndpoints",),
        no_endpoints,
        {"name": NOBODY.name},
        after=lambda scene: call(scene, "web", NOBODY, 3),
    ),
    Fault(
        ("BpfsvcEndpointsQuarantined",),
        refusing_endpoint,
        part="web",
        after=lambda scene: call(scene, "web", SICK),
    ),
    Fault(
        ("BpfsvcShadowDifferences",),
        stale_kube_proxy,
        {"service": SHADOWED.name},
    ),
)
"""Faults of one Service, node or agent, which are made at the same time."""

OF_ALL = (Fault(("BpfsvcAgentUnreachable", "BpfsvcAgentsMissing"), no_agents, part="web"),)
"""Faults that leave room for no other."""
