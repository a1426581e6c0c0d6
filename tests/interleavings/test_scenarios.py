"""Scenarios that take seconds; ``make interleavings`` has all. And faults that others had."""

from __future__ import annotations

from functools import cached_property

import pytest

from bpfsvc.datapath.loader.source import CSource
from tests.fuzz.controlled_node import MarkedSource, marked_source
from tests.interleavings.node import machine_of
from tests.interleavings.scenarios import Scenario, World

pytestmark = pytest.mark.slow

SHORT = [
    Scenario(False, False, "new", ("S", "S")),
    Scenario(False, False, "opened", ("S", "<SA")),
    Scenario(False, False, "opened", ("S", "<SA"), "backend"),
    Scenario(False, False, "answered", ("A", "A")),
    Scenario(False, False, "established", ("FA", "<FA")),
    Scenario(False, False, "established", ("R", "<R")),
    Scenario(False, True, "opened", ("S",), "eviction"),
    Scenario(False, True, "answered", ("A",), "eviction"),
    Scenario(False, True, "answered", ("R",), "removal"),
    Scenario(False, True, "opened", ("S", "<SA"), protocol="UDP"),
    Scenario(False, True, "answered", ("<A",), "eviction", "UDP"),
    Scenario(True, False, "opened", ("S", "<SA")),
    Scenario(True, False, "answered", ("A", "<SA")),
    Scenario(True, True, "opened", ("R",), "eviction"),
    Scenario(True, True, "opened", ("<SA",), "removal"),
    Scenario(True, True, "answered", ("A",), "eviction"),
    Scenario(True, True, "opened", ("S",), "eviction", "UDP"),
]


@pytest.mark.parametrize("scenario", SHORT, ids=str)
def test_no_interleaving_of_a_scenario_ends_badly(world: World, scenario: Scenario) -> None:
    result, _ = world.explored(scenario)
    assert not result.problem, "\n  ".join([result.problem, *result.schedule])
    assert result.states > 10
    assert result.ends


def test_a_late_packet_is_translated_wrongly_only_if_its_freed_row_is_given_away(
    world: World,
) -> None:
    """docs/testing.md says so. The connection is closed, collected, and opened again."""
    scenario = Scenario(False, False, "closed", ("S", "A"), "queue")
    assert world.explored(scenario)[0].problem
    assert not world.explored(scenario, gives_away=False)[0].problem


@pytest.mark.parametrize("evictable", [False, True], ids=["held", "where the kernel evicts"])
def test_a_datagram_at_the_end_of_its_flow_leaves_no_half_of_a_pair(
    world: World, evictable: bool
) -> None:
    """The connection GC removes a pair by two keys; meanwhile a datagram may open it anew."""
    packets = ("A", "A") if evictable else ("A", "<A")
    scenario = Scenario(False, evictable, "answered", packets, "sweep", "UDP")
    result, _ = world.explored(scenario, gives_away=False)
    assert not result.problem, "\n  ".join([result.problem, *result.schedule])
    assert result.ends


def source_with(text: str, other: str) -> CSource:
    """Return the sources of this checkout with another text in the place of one."""

    class Changed(MarkedSource):
        @cached_property
        def text(self) -> str:
            assert super().text.count(text) == 1
            return super().text.replace(text, other)

    plain = marked_source()
    return Changed(plain.sizes, plain.root, plain.main)


_MOVE = (
    "\tint error = connections.insert(flow, connection), other_error = 0;\n\n"
    "\tif (error == -EEXIST)\n\t\treturn true;\n"
    "\tif (!error)\n\t\tother_error = connections.insert(partner, other);\n"
    "\tif (!(error | other_error)) {\n"
    "\t\tif (!(new_connections.delete(partner) | new_connections.delete(flow)))\n"
    "\t\t\treturn true;\n"
)
_MOVE_UNSEEN = (
    "\tint error = connections.update(partner, other), other_error = 0;\n\n"
    "\tif (!error && !connections.update(flow, connection)) {\n"
    "\t\tnew_connections.delete(partner);\n"
    "\t\tnew_connections.delete(flow);\n"
    "\t\treturn true;\n"
)
FAULTS = {
    "a pair is removed while it moves": (
        *(_MOVE, _MOVE_UNSEEN),
        Scenario(False, True, "answered", ("A",), "removal"),
        "the answer to a SYN afterwards leaves as",
    ),
    "two CPUs move a pair": (
        "\tif (error == -EEXIST)\n\t\treturn true;\n",
        "\tif (error == -EEXIST)\n\t\terror = 0;\n",
        Scenario(False, True, "answered", ("A", "A")),
        "is dropped",
    ),
    "one half of a pair is evicted alone": (
        "\treturn connection_establish(flow, connection, tcp_flags);\n",
        "\treturn tcp_flags & TCP_SYN ||\n"
        "\t       connection_establish(flow, connection, tcp_flags);\n",
        Scenario(False, True, "opened", ("S",), "eviction"),
        "leaves as",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_put_back_is_found(world: World, fault: str) -> None:
    text, other, scenario, problem = FAULTS[fault]
    machine, names = machine_of(source_with(text, other))
    result, _ = World(world.node, machine, names).explored(scenario)
    assert problem in result.problem
    assert len(result.schedule) >= 2
    sound, _ = world.explored(scenario)
    assert not sound.problem, "\n  ".join([sound.problem, *sound.schedule])
