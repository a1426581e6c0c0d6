"""Faults that are planted are found, and each becomes a short history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import pytest

from bpfsvc.datapath.loader import shared_maps
from bpfsvc.datapath.loader.bytecode import INSTRUCTION, Bytecode, Program
from bpfsvc.datapath.loader.source import CSource
from tests.fuzz.conftest import MakePlayer
from tests.fuzz.controlled import instruction
from tests.fuzz.controlled_node import MarkedSource, marked_source
from tests.fuzz.events import Packet, Upgrade, Write
from tests.fuzz.player import Player
from tests.fuzz.report import as_test
from tests.fuzz.run import Failure, failure_of, first_failure

_CALL, _SET = 0x85, 0xB7
_SKB_STORE_BYTES, _L4_CSUM_REPLACE, _MAP_DELETE, _FIB_LOOKUP = 9, 11, 3, 69
"""Numbers of helpers (``linux/bpf.h``)."""


def found(player: Player, histories: int = 20) -> Failure:
    """Return the first failure of some histories."""
    for seed in range(histories):
        failure = first_failure(player, seed)
        if failure:
            return failure
    raise AssertionError(f"not found in {histories} histories")


def without_call(helper: int, *programs: str) -> Callable[[Bytecode], Bytecode]:
    """Return a change of a build: these programs get 0 in place of each call of a helper."""

    def change(build: Bytecode) -> Bytecode:
        changed = [
            _without_call(program, helper) if program.name in programs else program
            for program in build.programs
        ]
        assert changed != list(build.programs), "there is no such call"
        return replace(build, programs=tuple(changed))

    return change


def _without_call(program: Program, helper: int) -> Program:
    call, nothing = instruction(_CALL, 0, 0, 0, helper), instruction(_SET, 0, 0, 0, 0)
    code = bytearray(program.code)
    for at in range(0, len(code), INSTRUCTION):
        if code[at : at + INSTRUCTION] == call:
            code[at : at + INSTRUCTION] = nothing
    return replace(program, code=bytes(code))


FAULTS = {
    "a checksum that is not changed": (_L4_CSUM_REPLACE, ("egress",), "checksum"),
    "a packet that is not changed": (_SKB_STORE_BYTES, ("ingress",), "packet of"),
    "a connection that is not removed": (_MAP_DELETE, ("gc",), "was not removed"),
    "a packet of XDP to no neighbour": (_FIB_LOOKUP, ("xdp",), "hardware addresses"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_an_instruction_is_found_and_minimised(
    make_player: MakePlayer, fault: str
) -> None:
    helper, programs, text = FAULTS[fault]
    player = make_player(without_call(helper, *programs))
    failure = found(player)
    assert text in failure.text
    assert len(failure.events) <= 5
    assert failure_of(player, failure.seed, failure.events) == failure.text


def source_without(text: str) -> CSource:
    """Return the sources of this checkout without a text that they have once."""

    class Changed(MarkedSource):
        @cached_property
        def text(self) -> str:
            assert super().text.count(text) == 1
            return super().text.replace(text, "")

    plain = marked_source()
    return Changed(plain.sizes, plain.root, plain.main)


@pytest.mark.slow  # It compiles the programs.
def test_a_closed_connection_that_has_lost_its_pair_around_the_wire_is_found(
    make_player: MakePlayer,
) -> None:
    """The fault of d7c0057, once more: the pair around the wire is not looked for."""
    player = make_player(source=source_without("connection_closed(connection) ||\n\t\t"))
    failure = found(player, histories=200)
    assert "is dropped at egress" in failure.text
    assert failure_of(player, failure.seed, failure.events) == failure.text


def test_an_older_build_that_settles_in_an_upgrade_is_found(
    make_player: MakePlayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault of b83c1940, once more: both builds read one map of settings."""
    monkeypatch.setattr(shared_maps, "OWN_MAPS", ("layout", "steps"))
    player = make_player()
    failure = found(player)
    assert "dropped" in failure.text
    assert Upgrade in map(type, failure.events)
    assert len(failure.events) <= 5


class WrongBackend(Player):
    """Writes another port for every backend than the control plane says."""

    def _program(self, number: int) -> None:
        super()._program(number)
        table = self.node.pinned.map("backends")
        record = self.node.pinned.layout.maps["backends"].value
        for key, value in list(table.items()):
            table.update(key, record.pack({**record.unpack(value), "port": 8081}))


def test_a_fault_of_an_entry_is_found_and_minimised(player: Player) -> None:
    failure = found(WrongBackend(player.node, player.network))
    assert "8081" in failure.text
    assert [type(event) for event in failure.events] in ([Packet], [Write, Packet])
    assert not failure_of(player, failure.seed, failure.events)


def test_a_failure_is_printed_as_a_test_that_fails_in_the_same_way(player: Player) -> None:
    """The printed text is run as it is."""
    wrong = WrongBackend(player.node, player.network)
    failure = found(wrong)
    names: dict[str, object] = {}
    exec("from tests.fuzz.events import *\nfrom tests.fuzz.player import *", names)
    exec(as_test(failure), names)
    test = names[f"test_history_{failure.seed}"]
    assert callable(test)
    with pytest.raises(AssertionError, match="8081"):
        test(wrong)
    test(player)
