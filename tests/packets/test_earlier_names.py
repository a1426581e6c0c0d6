"""Upgrade from and downgrade to releases whose programs had other names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bpfsvc.datapath import loaded, syscall
from bpfsvc.datapath.kernel_names import kernel_name
from bpfsvc.datapath.loader import features, loader
from bpfsvc.datapath.loader.bytecode import Bytecode
from bpfsvc.datapath.loader.compiler_process import compile_source
from bpfsvc.datapath.loader.source import load
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.lab import sandbox
from bpfsvc.doctor.collect.others import is_bpfsvc
from tests.packets.builds import Start, build, connect_all, map_id, works
from tests.packets.node import SIZES, Node
from tests.packets.peers import ALL_PEERS

EARLIER = {
    "xdp": "edge",
    "explain": "decide",
    "step_established": "step_careful",
    "step_parse_slow": "step_unusual",
    "step_fast_path": "step_shortcut",
}
"""Programs whose pins had other names in builds before the prefix. (So had ``gc``, but this test
writes Services by those pins, which takes that program; an agent never does so.)"""

COMMENT = ("bpfsvc.c", "/* A first packet that is refused. */", "/* Refused. */")
"""A change that makes another build of the same programs."""


def load_earlier(root: PinRoot, build: Bytecode, previous: Pinned | None = None) -> None:
    """Load and pin a build as releases before the prefix did: all names are different.

    Maps of ``previous`` are shared, as in those releases.
    """
    programs = [
        replace(program, name=EARLIER.get(program.name, program.name)) for program in build.programs
    ]
    steps = [EARLIER.get(name, name) for name in build.steps]
    build = replace(build, programs=tuple(programs), steps=tuple(steps))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "kernel_name", lambda name: name[:15])
        loader.load_build(build, root.next, previous)
    root.promote_next()


def ingress_name(node: Node) -> str:
    """Return the kernel's name of the ingress program; the doctor knows bpfsvc by it."""
    number = syscall.program_id(node.pinned.program("ingress"))
    assert is_bpfsvc(loaded.maps_of(number))
    return loaded.program_name(number)


@pytest.mark.slow
def test_upgrade_and_downgrade_work_with_the_names_of_earlier_releases(
    request: pytest.FixtureRequest, start: Start, tmp_path: Path
) -> None:
    """Connections continue with the programs of both builds, which share the maps."""
    sandbox.require()
    source = build(tmp_path / "bpf", COMMENT)
    earlier = Bytecode.decode(compile_source(source), source.code_digest).sized(
        source, features.of_this_kernel().numbers()
    )
    root = PinRoot(sandbox.BPF_ROOT / request.node.name)
    root.create()
    load_earlier(root, earlier)
    node = start(source)
    assert (root.current / "programs" / "edge").exists()
    assert ingress_name(node) == "ingress"
    seen = connect_all(node)

    before = node.pinned
    node.load(load(SIZES))
    assert not node.installation.copies_connections
    assert map_id(node.pinned, "connections") == map_id(before, "connections")
    assert all(works(node, peers, seen[peers]) for peers in ALL_PEERS)
    node.installation.complete()
    assert sorted(path.name for path in root.path.iterdir()) == ["current"]
    assert (root.current / "programs" / "xdp").exists()
    assert not (root.current / "programs" / "edge").exists()
    assert ingress_name(node) == kernel_name("ingress")
    assert all(works(node, peers, seen[peers]) for peers in ALL_PEERS)

    load_earlier(root, earlier, node.pinned)
    node.pinned.close()
    node.pinned = Pinned(root.current)
    assert ingress_name(node) == "ingress"
    assert all(works(node, peers, seen[peers]) for peers in ALL_PEERS)
