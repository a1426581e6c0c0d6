"""Programs and maps as ``bpftool`` lists them, beside programs of other software."""

from __future__ import annotations

from bpfsvc.datapath import loaded, syscall
from bpfsvc.datapath.kernel_names import LENGTH, PREFIX, SHORT, kernel_name, kernel_names
from bpfsvc.datapath.loader.compiler import (
    DROP_PROGRAM,
    SOCKET_PROGRAMS,
    TC_PROGRAMS,
    TRACEPOINT_PROGRAMS,
    WATCH_PROGRAM,
    XDP_PROGRAMS,
)
from tests.packets.node import Node
from tests.packets.test_tail_calls import NEEDS

PROGRAMS = (
    *TC_PROGRAMS,
    *NEEDS,
    *XDP_PROGRAMS,
    *SOCKET_PROGRAMS,
    *WATCH_PROGRAM,
    *TRACEPOINT_PROGRAMS,
)


def name_of_map(node: Node, name: str) -> str:
    """Return the kernel's name of a map: 16 bytes of ``struct bpf_map_info`` from byte 24."""
    return syscall.info(node.pinned.map(name).fd, 40)[24:].rstrip(b"\0").decode()


def test_every_name_begins_with_the_prefix_is_unique_and_not_cut(node: Node) -> None:
    names = [kernel_name(name) for name in (*PROGRAMS, *DROP_PROGRAM, *node.pinned.layout.maps)]
    assert all(name.startswith(PREFIX) and len(name) > len(PREFIX) for name in names)
    assert len(set(names)) == len(names)
    forms = [SHORT.get(name, name) for name in (*PROGRAMS, *node.pinned.layout.maps)]
    assert not [form for form in forms if len(PREFIX + form) > LENGTH]


def test_no_earlier_name_of_a_map_is_that_of_another_map(node: Node) -> None:
    """So each name identifies one map."""
    names = [name for table in node.pinned.layout.maps for name in kernel_names(table)]
    assert len(set(names)) == len(names)


def test_the_kernel_lists_all_programs_and_maps_by_these_names(node: Node) -> None:
    for name in (*PROGRAMS, *DROP_PROGRAM):
        program = syscall.program_id(node.pinned.program(name))
        assert loaded.program_name(program) == kernel_name(name)
    for name in node.pinned.layout.maps:
        assert name_of_map(node, name) == kernel_name(name)
