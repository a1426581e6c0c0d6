"""Which connections take the fast path: their first packet decides, for all that follow."""

from __future__ import annotations

import pytest

from tests.packets.crossing import Crossing, forwarded, furnish, open_far, taken
from tests.packets.node import Node, same
from tests.packets.scene import SCTP_SCENES, Scene, bare


def all_by_the_stack(at: Crossing, scene: Scene, client: str, by: str) -> None:
    """Open a connection, and assert that nothing of it is fast."""
    vip, backend = scene.vip, scene.backend
    scene.service(at.node, [backend])
    sent = at.stack(by, scene.opening(client, vip))
    assert same(sent, scene.opening(client, backend))
    reply = scene.answer(backend, client)
    assert same(at.stack("eth0", reply), reply)
    assert same(at.leaves(by, reply), scene.answer(vip, client))
    proof, goes = scene.proof(client, vip, backend, client)
    if scene.protocol == "TCP":
        assert same(at.stack(by, proof), goes)
    assert same(at.stack(by, scene.data(client, vip)), scene.data(client, backend))
    assert taken(at) == 0


def test_one_that_is_older_than_the_fast_path(at: Crossing, people: Scene) -> None:
    """Its beginning was seen by conntrack, so its end must be, too."""
    at.node.settings(fast_path=0)
    people.service(at.node, [people.backend])
    assert same(
        at.stack("pod0", people.opening(people.client, people.vip)),
        people.opening(people.client, people.backend),
    )
    at.node.settings(fast_path=1)
    reply = people.answer(people.backend, people.client)
    assert same(at.stack("eth0", reply), reply)
    at.stack("pod0", people.data(people.client, people.vip))
    assert taken(at) == 0


@pytest.mark.parametrize("name", ["pod0", "eth0"])
def test_one_by_an_interface_that_takes_no_part(at: Crossing, people: Scene, name: str) -> None:
    at.put(name, shortcut=False)
    all_by_the_stack(at, people, people.client, "pod0")


def test_one_whose_replies_would_leave_by_another_interface(at: Crossing, people: Scene) -> None:
    all_by_the_stack(at, people, people.client, "pod1")


def test_one_without_a_way_back(at: Crossing, people: Scene) -> None:
    lost = people.at("10.244.1.77" if people.family == 4 else "fd44:0:0:1::77", 40000)
    all_by_the_stack(at, people, lost, "pod0")


def test_one_to_this_node_itself(at: Crossing, people: Scene) -> None:
    """A backend in the node's own network: nothing is forwarded."""
    us = people.node_place(6443)
    people.service(at.node, [us])
    assert same(
        at.stack("pod0", people.opening(people.client, people.vip)),
        people.opening(people.client, us),
    )


@pytest.mark.parametrize("who", ["the backend", "the client"])
def test_one_that_leaves_the_range_of_pods_and_is_not_masqueraded_by_us(
    at: Crossing, people: Scene, who: str
) -> None:
    """CNIs masquerade that in the stack."""
    outside = people.at(bare(people.stranger), 6443)
    pods = (people.client, "pod0", outside), (people.stranger, "eth0", people.backend)
    client, by, backend = pods[who == "the client"]
    people.service(at.node, [backend])
    assert same(at.stack(by, people.opening(client, people.vip)), people.opening(client, backend))


def test_one_from_outside_to_a_pod_of_the_node_needs_no_masquerade(
    at: Crossing, people: Scene
) -> None:
    """As with externalTrafficPolicy Local; nobody masquerades what goes to the node's own pods."""
    stranger, vip, near = people.stranger, people.vip, people.other_backend
    people.service(at.node, [near])
    sent = at.straight("eth0", people.opening(stranger, vip), to="pod1")
    assert forwarded(sent, people.opening(stranger, near))


@pytest.mark.parametrize("sctp", SCTP_SCENES, ids=str)
def test_one_of_sctp(crossroads: Crossing, node: Node, sctp: Scene) -> None:
    furnish(crossroads, sctp)
    sctp.service(node, [sctp.backend])
    assert same(
        crossroads.stack("pod0", sctp.opening(sctp.client, sctp.vip)),
        sctp.opening(sctp.client, sctp.backend),
    )


def test_without_the_option_nothing_is_fast(at: Crossing, people: Scene) -> None:
    at.node.settings(fast_path=0)
    all_by_the_stack(at, people, people.client, "pod0")


def test_what_is_not_translated_is_not_touched(at: Crossing, people: Scene) -> None:
    """Not even beside connections on the same ports."""
    open_far(at, people)
    other = people.at(bare(people.other_backend), int(people.client.rpartition(":")[2]))
    for packet in (
        people.data(people.backend, other),
        people.opening(other, people.backend),
        people.data(other, people.backend),
    ):
        assert same(at.stack("eth0", packet), packet)
