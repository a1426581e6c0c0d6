"""Frames of the benchmark are correct and arrive, and their cost is measured on their path."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.datapath.instructions import R1, R2, Code
from bpfsvc.devtools.bench.packets.flows import Flow, Place
from bpfsvc.devtools.bench.packets.xdp_programs import load, payload, sender
from bpfsvc.devtools.bench.steps import SlowModes
from bpfsvc.devtools.bench.suites.frames import measure
from bpfsvc.devtools.bench.testbeds.frames import BACKEND, CLIENT, NODE, FrameTestbed, Lost
from bpfsvc.devtools.lab.capture import Capture

FRAMES = 2000
IPV4 = b"\x08\x00"


@pytest.fixture
def wire() -> Iterator[FrameTestbed]:
    """Build a testbed, and keep the test on one core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    with FrameTestbed("tested") as made:
        yield made
    os.sched_setaffinity(0, allowed)


def test_every_frame_is_made_again_with_correct_checksums(wire: FrameTestbed) -> None:
    """Whatever became of it before: all ports of the flows, and nothing else that differs."""
    flow = Flow(Place(CLIENT, 30_000), BACKEND, socket.IPPROTO_UDP)
    program = load("sender", sender(flow, 16, wire.link))
    with Capture(wire.node, "eth0") as capture:
        wire.send(program, bytes(60), FRAMES)
        incoming = [frame.data for frame in capture.frames() if not frame.outgoing]
    os.close(program)
    # The wire's own end may join groups of IPv6 meanwhile.
    frames = [data for data in incoming if data[12:14] == IPV4]
    assert len(frames) == FRAMES
    ports = set()
    for data in set(frames):
        parsed = Ether(data)
        port = parsed[UDP].sport
        ports.add(port)
        sums = parsed[IP].chksum, parsed[UDP].chksum
        del parsed[IP].chksum, parsed[UDP].chksum
        again = Ether(bytes(parsed))
        assert (again[IP].chksum, again[UDP].chksum) == sums
        assert data == flow._replace(source=Place(CLIENT, port)).frame(
            link=wire.link, payload=payload(port)
        )
    assert ports == set(range(30_000, 30_016))


def test_frames_that_are_not_forwarded_are_lost(wire: FrameTestbed) -> None:
    with (
        wire.frames_to(Place(NODE, 9), "tc") as frames,
        pytest.raises(Lost, match=f"0 of {FRAMES} frames arrived"),
    ):
        frames.send(FRAMES)


def test_packets_that_are_not_translated_are_an_error(wire: FrameTestbed) -> None:
    """The node routes them, but masquerades none."""
    with pytest.raises(Lost, match=r"does not become"):
        wire.open_flows(BACKEND, masqueraded=True)


@pytest.mark.slow
def test_modes_are_measured_beside_those_without_services() -> None:
    cells, notes = measure(1, ("default", "iptables"), lambda _: None, rounds=2, frames=FRAMES)
    assert notes == []
    values = {cell.mode: cell.values for cell in cells}
    assert list(values) == ["drop", "bounce", "routed", "default", "iptables"]
    assert all(len(each) == 2 and 10 < min(each) < 1e6 for each in values.values())
    assert {(cell.kind, cell.where, cell.unit) for cell in cells} == {("datagrams", "remote", "ns")}


def test_a_mode_that_cannot_be_set_up_is_noted_and_left_out() -> None:
    cells, notes = measure(1, ("nonsense",), lambda _: None, rounds=1, frames=FRAMES)
    assert [cell.mode for cell in cells] == ["drop", "bounce", "routed"]
    assert [note.partition(":")[0] for note in notes] == ["frames"]
    assert "nonsense with 1 Service" in notes[0]


def test_a_baseline_is_left_out_of_clusters_as_large_as_one_that_took_it_too_long() -> None:
    """What took too long is noted, and smaller ones are tried."""
    slow = SlowModes()

    def modes(services: int, limit: float) -> tuple[list[str], list[str]]:
        cells, notes = measure(
            services,
            ("nftables",),
            lambda _: None,
            rounds=1,
            frames=FRAMES,
            limit=limit,
            slow=slow,
        )
        return [cell.mode for cell in cells], [note.partition(": ")[2] for note in notes]

    bare = ["drop", "bounce", "routed"]
    found, (note,) = modes(3, 1e-6)
    assert found == bare
    assert "not programmed within" in note
    assert slow.smallest == {"nftables": 3}
    assert modes(3, 60) == (
        bare,
        ["nftables with 3 Services: not tried: 3 Services took too long already"],
    )
    assert modes(2, 60) == ([*bare, "nftables"], [])


def test_a_jump_to_nowhere_is_an_error() -> None:
    code = Code()
    code.if_more(R1, R2, "nowhere")
    with pytest.raises(BpfsvcError, match=r"no mark 'nowhere'"):
        code.finish()
