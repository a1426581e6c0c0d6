"""The sweep proposes what may be over, a pair at a time, and leaves the rest alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bpfsvc.collector import Collector
from bpfsvc.config import Lifetimes
from tests.packets.node import Node, tcp
from tests.packets.scene import Scene
from tests.packets.test_collect import LIFETIMES, established

KEEP = Lifetimes(
    **{name.removesuffix("_seconds"): value for name, value in LIFETIMES.items()}, half_open=60
)

ALONE = 15
"""Seconds by which replies outlive what they belong to."""


@pytest.fixture
def sweep(node: Node) -> Callable[[], int]:
    return Collector(node.pinned, KEEP, 60).sweep


def test_what_lives_is_not_even_proposed(
    node: Node, scene: Scene, sweep: Callable[[], int]
) -> None:
    """Not by the clock of the kernel, and not by that of the sweep."""
    established(node, scene)
    node.settings(**dict.fromkeys(LIFETIMES, 0))
    assert sweep() == 0
    assert node.count("connections") == 2


def test_both_halves_go_at_once(node: Node, scene: Scene, sweep: Callable[[], int]) -> None:
    established(node, scene)
    node.age(7)
    assert sweep() == 1
    assert node.count("connections") == 0


def test_replies_alone_go_a_little_later(
    node: Node, scene: Scene, sweep: Callable[[], int]
) -> None:
    flow = established(node, scene)
    node.pinned.map("connections").delete(flow)
    node.age(7)
    assert sweep() == 0
    node.age(7 + ALONE)
    assert sweep() == 1
    assert node.count("connections") == 0


def test_a_closed_connection_goes_before_an_idle_one(
    node: Node, tcp_scene: Scene, sweep: Callable[[], int]
) -> None:
    established(node, tcp_scene)
    node.age(3)
    assert sweep() == 0
    node.forward(tcp(tcp_scene.client, tcp_scene.vip, "R"))
    node.age(3)
    assert sweep() == 1


def test_pairs_that_are_held_half_open_are_counted_again(
    node: Node, scene: Scene, sweep: Callable[[], int]
) -> None:
    """Racing packets may have counted one twice."""
    established(node, scene)
    node.half_open(1000)
    sweep()
    assert node.held() == 0
    scene.service(node, [scene.backend])
    node.forward(scene.opening(scene.stranger, scene.vip))
    assert node.held() == 1
    node.half_open(1000)
    sweep()
    assert node.held() == 1
