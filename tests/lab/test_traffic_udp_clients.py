"""UDP clients whose Services and backends change: who is led elsewhere, and who must not be.

A client asks again and again from one socket, connected or not, of a pod, of the node or of the
world outside. ``OLD`` serves at first, on this node; ``NEW`` on another.
"""

from __future__ import annotations

import copy
import json
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bpfsvc.lab.dial import connect, tally
from bpfsvc.lab.namespace import Namespace
from bpfsvc.lab.objects import Object
from bpfsvc.lab.patience import stretched, wait
from bpfsvc.lab.pod import Pod
from tests.lab.acquainted import acquaint, by_packets
from tests.lab.scene import ONE, Named, Scene, at, built, host, objects

ROLLED = Named("rolled", 61)
TWIN = Named("twin", 62)
FAR = Named("far", 63)
FIRST, SECOND = Named("claim-a", 64), Named("claim-b", 65)
SHARED = "198.51.100.61"
FEW, MANY = 6, 70_000

CLIENTS = ("pod", "node", "client")
OURS = ("pod", "node")
"""Whose sockets the hooks translate."""


@pytest.fixture(scope="module")
def met() -> Iterator[Scene]:
    """A lab whose pods are known to the hooks; ``OLD`` serves TWIN, too."""
    with built(layout="routed", holds_pods=True) as scene:
        every = [
            objects(ROLLED, [old(scene)]),
            objects(FAR, [new(scene)], externalTrafficPolicy="Local"),
            *(objects(ONE[number], [scene.lab.pods[number]]) for number in (0, 2)),
        ]
        scene.cluster.put("services", *(each for made in every[1:] for each in made))
        scene.cluster.put("rolled", *every[0])
        scene.cluster.put("twin", *objects(TWIN, [old(scene)]))
        scene.cluster.start()
        acquaint(scene)
        yield scene


def old(scene: Scene) -> Pod:
    return scene.lab.pods[1]


def new(scene: Scene) -> Pod:
    return scene.lab.pods[3]


def roll(scene: Scene, *pods: Pod, **spec: Any) -> None:
    scene.cluster.apply("rolled", *objects(ROLLED, pods, **spec))


class Asking:
    """A UDP socket and where it asks."""

    def __init__(
        self, scene: Scene, where: str, *, connected: bool, to: tuple[str, int] | None = None
    ) -> None:
        place: Namespace = getattr(scene, where)
        self.socket = place.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(stretched(0.5))
        usual = (ROLLED.vip(4), 80)
        if where == "client":
            usual = (scene.node.address(4), ROLLED.node_port)
        self._to = to or usual
        self._connected = connected
        if connected:
            self.socket.connect(self._to)

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def answer(self) -> tuple[str, str]:
        """Ask once; give the pod that answers, and whom it saw."""
        if self._connected:
            self.socket.send(b"who\n")
        else:
            self.socket.sendto(b"who\n", self._to)
        said = json.loads(self.socket.recv(1 << 16))
        return said["pod"], said["peer"]

    def who(self) -> str:
        """Ask once; give the pod that answers, "nobody", or that the socket was "closed"."""
        try:
            return self.answer()[0]
        except TimeoutError:
            return "nobody"
        except OSError:
            return "closed"


def asking(scene: Scene, where: str, wanted: Pod, *, connected: bool = False) -> Asking:
    """Give a socket that was given ``wanted``."""
    for _ in range(60):
        made = Asking(scene, where, connected=connected)
        if made.who() == wanted.name:
            return made
        made.socket.close()
    raise AssertionError(f"{wanted.name} is never chosen")


# -- service ports that are not the same as before --


def renamed(made: Sequence[Object]) -> list[Object]:
    """Give the UDP port of a Service and its slices another name."""
    found: list[Object] = copy.deepcopy(list(made))
    for port in (
        *found[0]["spec"]["ports"],
        *(port for each in found[1:] for port in each["ports"]),
    ):
        if port["protocol"] == "UDP":
            port["name"] = "anew"
    return found


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
@pytest.mark.parametrize("where", CLIENTS)
def test_a_port_with_another_name_leads_its_clients_on(
    met: Scene, where: str, connected: bool
) -> None:
    """As an upgrade of a chart does it, with a rollout."""
    roll(met, old(met))
    with asking(met, where, old(met), connected=connected) as client:
        met.cluster.apply("rolled", *renamed(objects(ROLLED, [old(met), new(met)])))
        met.cluster.apply("rolled", *renamed(objects(ROLLED, [new(met)])))
        _wait_led_on(client, met, where, connected)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
@pytest.mark.parametrize("where", CLIENTS)
def test_a_service_made_anew_leads_the_clients_of_the_former_on(
    met: Scene, where: str, connected: bool
) -> None:
    roll(met, old(met))
    with asking(met, where, old(met), connected=connected) as client:
        met.cluster.drop("rolled")
        met.cluster.settle()
        service, *slices = objects(ROLLED, [new(met)])
        met.cluster.apply("rolled", service)  # endpoints come later, as from an API server
        met.cluster.apply("rolled", service, *slices)
        _wait_led_on(client, met, where, connected)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
@pytest.mark.parametrize("where", OURS)
def test_an_address_that_another_service_takes_over_leads_its_clients_there(
    met: Scene, where: str, connected: bool
) -> None:
    """Both claim it all the time; whose it was is deleted."""
    met.cluster.apply("first", *objects(FIRST, [old(met)], externalIPs=[SHARED]))
    met.cluster.apply("second", *objects(SECOND, [new(met)], externalIPs=[SHARED]))
    with Asking(met, where, connected=connected, to=(SHARED, 80)) as client:
        assert client.who() == old(met).name
        met.cluster.drop("first")
        met.cluster.settle()
        _wait_led_on(client, met, where, connected)
    met.cluster.drop("second")
    met.cluster.settle()


def test_who_serves_as_before_keeps_clients_of_a_port_with_another_name(met: Scene) -> None:
    roll(met, old(met))
    with asking(met, "pod", old(met), connected=True) as client:
        peers = {client.answer()[1]}
        met.cluster.apply("rolled", *renamed(objects(ROLLED, [old(met), new(met)])))
        answers = {client.answer() for _ in range(FEW)}
    assert answers == {(old(met).name, *peers)}


def _wait_led_on(client: Asking, scene: Scene, where: str, connected: bool) -> None:
    """Wait until a client is led on: the node's own that are connected are told to connect anew.

    What is settled are rows; clients follow a moment later. An answer of that moment may be lost.
    """
    wanted = "closed" if where == "node" and connected else new(scene).name
    wait(lambda: client.who() == wanted, f"{wanted} for the client", timeout=5)


# -- what happened while no agent ran --


@pytest.mark.parametrize("where", OURS)
def test_a_socket_learns_what_changed_while_no_agent_ran(met: Scene, where: str) -> None:
    """Also of a backend that is still one of another Service."""
    roll(met, old(met))
    with asking(met, where, old(met)) as client:
        met.cluster.stop(met.node)
        met.cluster.put("rolled", *objects(ROLLED, [new(met)]))
        met.cluster.start(met.node)
        met.cluster.settle()
        assert client.who() == new(met).name


def test_a_connected_socket_of_the_node_is_closed_for_what_changed_while_no_agent_ran(
    met: Scene,
) -> None:
    roll(met, old(met))
    with (
        asking(met, "node", old(met), connected=True) as client,
        Asking(met, "node", connected=True) as other,
    ):
        other.socket.connect((TWIN.vip(4), 80))
        met.cluster.stop(met.node)
        met.cluster.put("rolled", *objects(ROLLED, [new(met)]))
        met.cluster.start(met.node)
        met.cluster.settle()
        assert client.who() == "closed"
        assert other.who() == old(met).name


def test_a_restart_leaves_sockets_with_their_backends(met: Scene) -> None:
    roll(met, old(met), new(met))
    with (
        asking(met, "node", new(met), connected=True) as connected,
        asking(met, "node", new(met)) as node,
        asking(met, "pod", new(met)) as pod,
    ):
        met.cluster.stop(met.node)
        met.cluster.start(met.node)
        met.cluster.settle()
        for client in (connected, node, pod):
            assert {client.who() for _ in range(FEW)} == {new(met).name}


# -- however many others there are --


def test_a_connected_socket_is_not_forgotten_for_others_that_came_later(met: Scene) -> None:
    roll(met, old(met))
    with asking(met, "node", old(met), connected=True) as client:
        for _ in range(0, MANY, 100):
            for each in met.node.sockets(100, socket.AF_INET, socket.SOCK_DGRAM):
                with each:
                    each.connect((ONE[0].vip(4), 80))
        roll(met, new(met))
        assert set(tally(met.node, ROLLED.vip(4), 80, "udp", count=FEW)) == {new(met).name}
        assert client.who() == "closed"


# -- who serves, though not everybody --


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
@pytest.mark.parametrize("where", CLIENTS)
def test_who_drains_and_serves_keeps_its_clients(met: Scene, where: str, connected: bool) -> None:
    """As flows in conntrack stay with it under kube-proxy; new clients go to others.

    It is no eligible endpoint of any Service then, so nothing else tells that it serves.
    """
    met.cluster.apply("twin", *objects(TWIN, [new(met)]))
    roll(met, old(met))
    with asking(met, where, old(met), connected=connected) as client:
        made = objects(ROLLED, [old(met), new(met)])
        for point in (point for each in made[1:] for point in each["endpoints"]):
            if (
                old(met).address(4) in point["addresses"]
                or old(met).address(6) in point["addresses"]
            ):
                point["conditions"] = {"ready": False, "serving": True, "terminating": True}
        met.cluster.apply("rolled", *made)
        assert {client.who() for _ in range(FEW)} == {old(met).name}
        with Asking(met, where, connected=connected) as later:
            assert later.who() == new(met).name
    met.cluster.apply("twin", *objects(TWIN, [old(met)]))


@pytest.mark.parametrize("where", OURS)
def test_who_comes_back_keeps_the_clients_it_is_given_then(met: Scene, where: str) -> None:
    roll(met, old(met), new(met))
    roll(met, new(met))
    roll(met, old(met), new(met))
    with asking(met, where, old(met)) as client:
        assert {client.who() for _ in range(FEW)} == {old(met).name}


def test_the_only_eligible_one_that_comes_back_sees_one_port_of_a_client(met: Scene) -> None:
    """More datagrams than a socket has room for translations."""
    local = {"internalTrafficPolicy": "Local"}
    for pods in ([old(met), new(met)], [new(met)], [old(met), new(met)]):
        roll(met, *pods, **local)
    with Asking(met, "pod", connected=False) as client:
        assert len({client.answer() for _ in range(20)}) == 1
        own = at(met.pod.address(4), client.socket.getsockname()[1])
        assert not by_packets(met.node, own)


# -- calls that only packets can carry --


@pytest.mark.parametrize("where", ["pod"])
def test_one_port_of_a_client_reaches_one_backend_by_two_services(met: Scene, where: str) -> None:
    roll(met, old(met))
    source = (met.pod.address(4), 41234)
    place = getattr(met, where)
    with connect(place, ROLLED.vip(4), 80, source=source) as one:
        assert one.who().pod == old(met).name
        with connect(place, TWIN.vip(4), 80, source=source) as two:
            seen = two.who()
            assert seen.pod == old(met).name
            assert host(seen.peer) == met.pod.address(4)


@pytest.mark.parametrize(("where", "to"), [("pod", "0.0.0.0"), ("pod", "::"), ("node", "::")])
def test_no_address_is_loopback_and_not_that_of_node_ports(met: Scene, where: str, to: str) -> None:
    """Node ports answer at 127.0.0.1 of the node, where that is asked for, and at ::1 nowhere."""
    place = getattr(met, where)
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    with place.socket(family) as own, place.socket(family) as client:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind(("::1" if ":" in to else "127.0.0.1", FAR.node_port))
        own.listen()
        client.settimeout(2)
        client.connect((to, FAR.node_port))
        accepted, _ = own.accept()
        with accepted:
            assert accepted.getpeername()[:2] == client.getsockname()[:2]
