"""What replaces the clocks and the random numbers of the programs."""

from __future__ import annotations

from bpfsvc.datapath.loader.bytecode import INSTRUCTION, Program
from tests.fuzz.controlled import FACTOR, INCREMENT, instruction, with_calls_replaced
from tests.fuzz.player import Player
from tests.packets.packet import tcp
from tests.packets.peers import TCP_PEERS

_GOTO, _CALL, _EXIT, _SET, _WIDE = 0x05, 0x85, 0x95, 0xB7, 0x18
_SUBPROGRAM = 1


def test_jumps_calls_and_places_follow_what_is_inserted() -> None:
    nothing = instruction(_SET, 0, 0, 0, 0)
    code = [
        instruction(_GOTO, 0, 0, 2, 0),  # over both calls, to the map
        instruction(_CALL, 0, 0, 0, 7),
        instruction(_CALL, 0, _SUBPROGRAM, 0, 4),  # to the last two
        instruction(_WIDE, 1, 1, 0, 0),
        instruction(0, 0, 0, 0, 7),
        instruction(_GOTO, 0, 0, -5, 0),  # back to the helper
        instruction(_EXIT, 0, 0, 0, 0),
        instruction(_CALL, 0, 0, 0, 5),
        instruction(_EXIT, 0, 0, 0, 0),
    ]
    program = Program(
        *("name", 3, 0, b"".join(code)),
        references=((3 * INSTRUCTION + 4, "connections"),),
        subprograms=((7 * INSTRUCTION, 16),),
    )
    made = with_calls_replaced(program, {7: [nothing] * 3, 5: [nothing] * 2})
    assert [made.code[at : at + INSTRUCTION] for at in range(0, len(made.code), INSTRUCTION)] == [
        instruction(_GOTO, 0, 0, 4, 0),
        *[nothing] * 3,
        instruction(_CALL, 0, _SUBPROGRAM, 0, 4),
        *code[3:5],
        instruction(_GOTO, 0, 0, -7, 0),
        code[6],
        *[nothing] * 2,
        code[8],
    ]
    assert made.references == ((5 * INSTRUCTION + 4, "connections"),)
    assert made.subprograms == ((9 * INSTRUCTION, 16),)


def test_a_build_reads_the_clock_and_the_numbers_of_its_owner(player: Player) -> None:
    player.begin(1)
    node, peers = player.node, TCP_PEERS[0]
    backends = [f"10.244.2.{number}:8080" for number in range(1, 100)]
    peers.service(node, backends)
    chosen = []
    for port, seed in enumerate((1, 1, 2)):
        node.controls.set_seed(seed)
        node.controls.set_time(player.model.now + port * 1_000_000_000)
        chosen.append(node.ingress(tcp(f"10.244.1.5:{40000 + port}", peers.vip)).dst)
    assert chosen[0] == chosen[1] != chosen[2]
    connections = node.pinned.layout.maps["connections"].value
    times = {
        connections.unpack(value)["created"] for _, value in node.pinned.map("connections").items()
    }
    assert times == {
        player.model.now,
        player.model.now + 1_000_000_000,
        player.model.now + 2_000_000_000,
    }


def test_the_state_of_the_generator_has_the_full_period() -> None:
    """Of a linear congruential generator modulo a power of two: Hull and Dobell's conditions."""
    assert FACTOR % 4 == 1
    assert INCREMENT % 2 == 1
