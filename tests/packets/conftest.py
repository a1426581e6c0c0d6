"""One node for all packet tests: compiling takes longer than all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from bpfsvc.lab import sandbox
from tests.packets.crossing import Crossing, crossing, furnish
from tests.packets.node import Node
from tests.packets.scene import SCENES, SCTP_SCENES, TCP_SCENES, UDP_SCENES, Scene
from tests.packets.uplink import Uplink, uplink


@pytest.fixture(scope="session")
def loaded() -> Iterator[Node]:
    sandbox.require()
    node = Node(sandbox.BPF_ROOT / "packets")
    yield node
    node.pinned.close()


@pytest.fixture
def node(loaded: Node) -> Node:
    """A node without Services or connections."""
    loaded.reset()
    return loaded


@pytest.fixture(params=SCENES, ids=str)
def scene(request: pytest.FixtureRequest) -> Scene:
    """All protocols over both families."""
    return cast(Scene, request.param)


@pytest.fixture(params=[one for one in SCENES if one.family == 4], ids=str)
def ipv4_scene(request: pytest.FixtureRequest) -> Scene:
    """All protocols over IPv4."""
    return cast(Scene, request.param)


@pytest.fixture(params=[one for one in SCENES if one.family == 6], ids=str)
def ipv6_scene(request: pytest.FixtureRequest) -> Scene:
    """All protocols over IPv6."""
    return cast(Scene, request.param)


@pytest.fixture(params=TCP_SCENES, ids=str)
def tcp_scene(request: pytest.FixtureRequest) -> Scene:
    """TCP over both families."""
    return cast(Scene, request.param)


@pytest.fixture(params=UDP_SCENES, ids=str)
def udp_scene(request: pytest.FixtureRequest) -> Scene:
    """UDP over both families."""
    return cast(Scene, request.param)


@pytest.fixture(params=SCTP_SCENES, ids=str)
def sctp_scene(request: pytest.FixtureRequest) -> Scene:
    """SCTP over both families."""
    return cast(Scene, request.param)


@pytest.fixture(scope="module")
def crossroads(loaded: Node) -> Iterator[Crossing]:
    """One for all tests of the module: its routes are only added to."""
    with crossing(loaded) as made:
        yield made


@pytest.fixture(params=TCP_SCENES + UDP_SCENES, ids=str)
def people(request: pytest.FixtureRequest) -> Scene:
    """The protocols that take part, over both families."""
    scene = request.param
    assert isinstance(scene, Scene)
    return scene


@pytest.fixture
def at(crossroads: Crossing, node: Node, people: Scene) -> Crossing:
    """The crossing with the people of the scene, and the fast path on."""
    return furnished(crossroads, node, people)


@pytest.fixture(params=TCP_SCENES, ids=str)
def talkers(request: pytest.FixtureRequest) -> Scene:
    """Those who use TCP."""
    scene = request.param
    assert isinstance(scene, Scene)
    return scene


@pytest.fixture
def tcp_at(crossroads: Crossing, node: Node, talkers: Scene) -> Crossing:
    """The crossing with those."""
    return furnished(crossroads, node, talkers)


def furnished(crossroads: Crossing, node: Node, scene: Scene) -> Crossing:
    assert crossroads.node is node
    furnish(crossroads, scene)
    return crossroads


@pytest.fixture(scope="module")
def cables(loaded: Node) -> Iterator[Uplink]:
    """The cables of all these tests."""
    with uplink(loaded) as made:
        yield made


@pytest.fixture
def wire(cables: Uplink) -> Uplink:
    """An uplink of a node without Services or connections."""
    cables.node.reset()
    cables.serve(cables.near, cables.far)
    return cables
