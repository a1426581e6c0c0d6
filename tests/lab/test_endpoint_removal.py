"""TCP connections to endpoints that leave, with real sockets: kept, drained, or reset at once."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from bpfsvc.devtools.lab.dial import OpenConnection, connect
from bpfsvc.devtools.lab.objects import Object
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.pod import LabPod
from bpfsvc.devtools.lab.rights import limited
from tests.lab.known_pods import make_known
from tests.lab.test_events import await_warning
from tests.lab.testbed import FAMILIES, NETWORKS, ONE, Named, Testbed, at, built_testbed, objects

LEFT = Named("left", 72)
WHERE = ("pod", "node", "client")
RESET = {"on-removal": "reset"}
LONG = {"on-removal": "drain", "drain-seconds": "3600"}
SHORT = {"on-removal": "drain", "drain-seconds": "2"}


@pytest.fixture(
    scope="module",
    params=[
        "routed",
        *(
            pytest.param(network, marks=pytest.mark.slow)
            for network in ("bridge", "bridge-vxlan-masquerade")
        ),
    ],
)
def running(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """A lab with an API server; the first pod is a client, the others are backends.

    In the first network sockets of pods are translated, where nothing speaks against it.
    """
    network = {**NETWORKS[request.param]}
    fast_path = network.pop("fast_path", "auto")
    holds_pods = request.param == "routed"
    with built_testbed(served=True, holds_pods=holds_pods, **network) as testbed:
        others = zip(ONE, testbed.lab.pods, strict=True)
        every = [made for of, pod in others for made in objects(of, [pod])]
        testbed.cluster.put("others", *every)
        testbed.cluster.put("left", *of_pods(backends(testbed), {}))
        testbed.cluster.options = ("--fast-path", fast_path)
        testbed.cluster.start()
        if holds_pods:
            make_known(testbed)
        yield testbed


def backends(testbed: Testbed) -> list[LabPod]:
    """Return a pod of each node."""
    return testbed.lab.pods[1:3]


def of_pods(pods: Sequence[LabPod], said: dict[str, str]) -> list[Object]:
    annotations = {f"bpfsvc.io/{name}": text for name, text in said.items()}
    return objects(LEFT, pods, annotations=annotations)


def apply(testbed: Testbed, pods: Sequence[LabPod], said: dict[str, str]) -> None:
    testbed.cluster.apply("left", *of_pods(pods, said))


class Clients:
    """Connections of a namespace through the Service, by backend; inside, one directly to each."""

    def __init__(self, testbed: Testbed, where: str, family: int, stack: ExitStack) -> None:
        self.family = family
        self.namespace = getattr(testbed, where)
        outside = where == "client"
        self.to = (
            (testbed.node.address(family), LEFT.node_port) if outside else (LEFT.vip(family), 80)
        )
        self.direct: dict[str, OpenConnection] = {}
        self.by_pod: dict[str, list[OpenConnection]] = {}
        pods = backends(testbed)
        for pod in [] if outside else pods:
            self.direct[pod.name] = stack.enter_context(
                connect(self.namespace, pod.address(family), 8080)
            )
            self.direct[pod.name].who()
        for _ in range(100):
            if len(self.by_pod) == len(pods):
                break
            opened = stack.enter_context(connect(self.namespace, *self.to))
            self.by_pod.setdefault(opened.who().pod, []).append(opened)
        assert self.by_pod.keys() == {pod.name for pod in pods}


def is_over(opened: OpenConnection) -> bool:
    """True if a reset has arrived at a connection; its client only waits."""
    opened.socket.setblocking(False)
    try:
        opened.socket.recv(1)
    except BlockingIOError:
        opened.socket.settimeout(stretched(2))
        return False
    except OSError as error:
        if error.errno in (errno.ECONNRESET, errno.ECONNABORTED):
            return True
        raise
    raise AssertionError("the connection was closed in the ordinary way")


def await_reset(connections: Sequence[OpenConnection]) -> None:
    left = list(connections)

    def all_over() -> bool:
        left[:] = [opened for opened in left if not is_over(opened)]  # a reset is told once
        return not left

    wait(all_over, "the clients see a reset")


def await_held(pod: LabPod, family: int, wanted: int) -> None:
    """Wait until the server of a pod has so many connections: it has seen resets of the others."""
    here = at(pod.address(family), 8080)
    command = ["ss", "-Htn", "state", "established", "src", here]
    wait(
        lambda: len(pod.run(command).stdout.splitlines()) == wanted,
        "the backend sees that its connections ended",
    )


def everywhere(testbed: Testbed, stack: ExitStack) -> list[Clients]:
    """Return clients of every place over both families."""
    return [Clients(testbed, where, family, stack) for where in WHERE for family in FAMILIES]


def through_to(pod: LabPod, clients: Sequence[Clients]) -> list[OpenConnection]:
    """Return the connections through the Service to a pod."""
    return [opened for of_place in clients for opened in of_place.by_pod[pod.name]]


def only_those_of(gone: LabPod, stays: LabPod, clients: Sequence[Clients]) -> None:
    """Assert that the backend has seen the end of what was reset, and that all others go on."""
    for family in FAMILIES:
        direct = sum(len(of_place.direct) for of_place in clients if of_place.family == family)
        await_held(gone, family, direct // 2)
    for of_place in clients:
        assert all(opened.echo(b"still here") for opened in of_place.by_pod[stays.name])
        assert all(opened.echo(b"direct") for opened in of_place.direct.values())


def all_are_kept(clients: Sequence[Clients]) -> bool:
    through = [opened for of_place in clients for opened in of_place.by_pod.values()]
    return all(opened.echo(b"kept") for of_pod in through for opened in of_pod)


def test_both_sides_see_a_reset_at_once(running: Testbed) -> None:
    for gone, stays in (backends(running), backends(running)[::-1]):
        apply(running, backends(running), RESET)
        with ExitStack() as stack:
            clients = everywhere(running, stack)
            apply(running, [stays], RESET)
            await_reset(through_to(gone, clients))
            only_those_of(gone, stays, clients)


def test_by_default_connections_stay(running: Testbed) -> None:
    gone, stays = backends(running)
    apply(running, [gone, stays], {})
    with ExitStack() as stack:
        clients = everywhere(running, stack)
        apply(running, [stays], {})
        assert all_are_kept(clients)


@pytest.mark.slow
def test_a_drain_ends_after_its_time(running: Testbed) -> None:
    gone, stays = backends(running)
    apply(running, [gone, stays], SHORT)
    with ExitStack() as stack:
        clients = everywhere(running, stack)
        began = time.monotonic()
        apply(running, [stays], SHORT)
        await_reset(through_to(gone, clients))
        assert time.monotonic() - began >= int(SHORT["drain-seconds"])
        only_those_of(gone, stays, clients)


def test_an_endpoint_that_comes_back_keeps_its_connections(running: Testbed) -> None:
    gone, stays = backends(running)
    apply(running, [gone, stays], LONG)
    with ExitStack() as stack:
        clients = Clients(running, "pod", 4, stack)
        apply(running, [stays], LONG)
        apply(running, [gone, stays], LONG)
        apply(running, [gone, stays], RESET)
        assert all_are_kept([clients])


def test_a_drain_of_another_agent_is_carried_out(running: Testbed) -> None:
    gone, stays = backends(running)
    apply(running, [gone, stays], LONG)
    with ExitStack() as stack:
        clients = everywhere(running, stack)
        apply(running, [stays], LONG)
        running.cluster.kill(running.node)
        running.cluster.put("left", *of_pods([stays], SHORT))
        running.cluster.start(running.node)
        await_reset(through_to(gone, clients))
        only_those_of(gone, stays, clients)


def exchange(opened: OpenConnection) -> None:
    """Send and receive for at most ten seconds, without a pause."""
    until = time.monotonic() + stretched(10)
    while time.monotonic() < until:
        assert opened.echo(bytes(50_000))


def test_a_transfer_ends_within_a_packet(running: Testbed, family: int) -> None:
    """Its numbers are out of date as soon as they are read; the next packet is answered."""
    gone, stays = backends(running)
    apply(running, [gone, stays], RESET)
    with ExitStack() as stack:
        clients = Clients(running, "pod", family, stack)
        (opened, *_) = clients.by_pod[gone.name]
        change = threading.Timer(0.2, apply, (running, [stays], RESET))
        change.start()
        with pytest.raises(ConnectionError):
            exchange(opened)
        change.join()


@pytest.mark.parametrize("raw", [True, False], ids=["with CAP_NET_RAW", "without"])
def test_the_rights_of_the_pod_are_enough_and_without_net_raw_the_next_packet_is_answered(
    running: Testbed, raw: bool
) -> None:
    gone, stays = backends(running)
    running.cluster.stop(running.node)
    running.cluster.start(running.node, before=limited([] if raw else ["CAP_NET_RAW"]))
    apply(running, [gone, stays], RESET)
    with ExitStack() as stack:
        pod, node, client = (Clients(running, where, 4, stack) for where in WHERE)
        apply(running, [stays], RESET)
        await_reset(node.by_pod[gone.name])
        by_packets = [*pod.by_pod[gone.name], *client.by_pod[gone.name]]
        if raw:
            await_reset(by_packets)
        else:
            running.cluster.agents[running.node.name].expect("the agent needs CAP_NET_RAW")
            assert not any(map(is_over, by_packets))
            for opened in by_packets:
                with pytest.raises(ConnectionError):
                    opened.echo(b"still here?")
    running.cluster.stop(running.node)
    running.cluster.start(running.node)


def test_what_is_in_force_and_what_was_reset_is_shown(running: Testbed) -> None:
    gone, stays = backends(running)
    apply(running, [gone, stays], RESET)
    assert "on-removal=reset" in shown(running)
    leaves = "when an endpoint leaves the Service, connections to it are reset"
    assert f"{leaves} at once (bpfsvc.io/on-removal: reset)" in explained(running)
    apply(running, [gone, stays], LONG)
    assert f"{leaves} after 3600 s (bpfsvc.io/on-removal: drain)" in explained(running)
    apply(running, [gone, stays], RESET)
    with ExitStack() as stack:
        clients = [Clients(running, where, 4, stack) for where in WHERE]
        by_packets, sockets = (
            through_to(gone, places) for places in ((clients[0], clients[2]), (clients[1],))
        )
        apply(running, [stays], RESET)
        await_reset(by_packets + sockets)
        count = len(by_packets)
        ended = f"{count} connections ({2 * count} of {2 * count} resets sent)"
        running.cluster.agents[running.node.name].expect(f"{ended} and {len(sockets)} socket")


def test_a_typo_is_an_event_and_changes_nothing(running: Testbed) -> None:
    apply(running, backends(running), RESET)
    apply(running, backends(running), {"on-removal": "wait", "drain-seconds": "soon"})
    note = await_warning(running, "BadScheduler", "Service", LEFT.name)
    assert "annotation bpfsvc.io/on-removal: 'wait' must be keep, drain or reset" in note
    assert "annotation bpfsvc.io/drain-seconds: seconds must be 1 to 86400, not 'soon'" in note
    assert "on-removal=reset" in shown(running)


def explained(testbed: Testbed) -> list[str]:
    """Return the reasons that ``bpfsvc explain`` gives for a connection to the Service."""
    asked = ("--from", "node", testbed.node.address(4), "TCP", at(LEFT.vip(4), 80))
    done = testbed.cluster.command(testbed.node, "explain", "-o", "json", *asked)
    assert (done.returncode, done.stderr) == (0, "")
    reasons: list[str] = json.loads(done.stdout)["reasons"]
    return reasons


def shown(testbed: Testbed) -> str:
    return testbed.cluster.command(testbed.node, "services", f"{LEFT.name}:web").stdout
