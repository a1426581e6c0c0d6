"""Calls of sockets on a kernel that lacks features (bpfsvc/datapath/loader/features.py).

Programs as they are loaded there take the place of those of an agent: they run on this kernel, too.
"""

from __future__ import annotations

import errno
import itertools
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.config.bpfsvc_v1alpha1 import DEFAULT_PROGRAMS
from bpfsvc.datapath import syscall
from bpfsvc.datapath.attach import links
from bpfsvc.datapath.loader import features, loader
from bpfsvc.datapath.loader.bytecode_cache import BytecodeCache
from bpfsvc.datapath.loader.features import ATOMICS, SET_RETVAL, Features
from bpfsvc.datapath.loader.map_copies import copy_maps
from bpfsvc.datapath.loader.shipped import ShippedPrograms
from bpfsvc.datapath.loader.source import load
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import stretched
from tests.lab.known_pods import by_packets, make_known, opened
from tests.lab.node_calls import answering, stream
from tests.lab.test_traffic_node_sockets import WHERE
from tests.lab.test_traffic_peer_names import cookie, names, peer
from tests.lab.testbed import EMPTY, ONE, Testbed, at, built_testbed, objects

LACKING = frozenset({ATOMICS, SET_RETVAL})
PROGRAMS = ("connect4", "connect6", "sendmsg4", "sendmsg6")


@pytest.fixture(scope="module")
def older() -> Iterator[Testbed]:
    """A lab whose pods are known, with such programs on the node."""
    with built_testbed(layout="routed", holds_pods=True) as testbed:
        every = [objects(named, [pod]) for named, pod in zip(ONE, testbed.lab.pods, strict=True)]
        every.append(objects(EMPTY, []))
        testbed.cluster.put("services", *itertools.chain.from_iterable(every))
        testbed.cluster.start()
        make_known(testbed)
        root = PinRoot(testbed.node.pin_root)
        with opened(testbed.node) as pinned, older_programs(pinned, root.path / "older") as older:
            use(root, older)
            yield testbed
            use(root, pinned)


@contextmanager
def older_programs(pinned: Pinned, directory: Path) -> Iterator[Pinned]:
    """Load such programs beside those of an agent, with the maps and settings of these."""
    source = load(Sizes())
    digest = source.code_digest
    compiled = BytecodeCache(sandbox.COMPILED, digest, print).read()
    # In an emulated machine the agent has taken those that came with it.
    compiled = compiled or ShippedPrograms(DEFAULT_PROGRAMS, digest).read()
    assert compiled
    kernel = Features(features.of_this_kernel().has - LACKING)
    build = compiled.sized(source, kernel.numbers())
    assert build.layout == pinned.layout
    wanted = tuple(program for program in build.programs if program.name in PROGRAMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "of_this_kernel", lambda: kernel)
        loader.load_build(replace(build, programs=wanted, steps=()), directory, pinned)
    made = Pinned(directory)
    copy_maps(pinned, made)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(directory)


def use(root: PinRoot, pinned: Pinned) -> None:
    """Have the node's sockets call the programs of a build."""
    for name in PROGRAMS:
        with links.opened(root.links / name) as link:
            syscall.link_update(link, pinned.program(name))


@pytest.mark.parametrize("where", WHERE)
def test_without_atomic_operations_a_name_is_in_the_storage_of_its_socket(
    older: Testbed, where: str, family: int
) -> None:
    """Two sockets could not be kept from taking the same place."""
    namespace: Namespace = getattr(older, where)
    for _ in range(3):
        with stream(namespace, family) as made:
            made.connect((ONE[2].vip(family), 80))
            assert peer(made) == at(ONE[2].vip(family), 80)
            assert cookie(made) not in names(older.node)
            assert answering(made) == older.lab.pods[2].name
            assert not by_packets(older.node, at(*made.getsockname()[:2]))


@pytest.mark.parametrize("where", WHERE)
def test_a_connection_to_a_service_without_endpoints_is_refused_by_a_packet(
    older: Testbed, where: str, family: int
) -> None:
    """Without bpf_set_retval connect() would say EPERM. The SYN of the node is answered at once."""
    with stream(getattr(older, where), family) as made:
        made.settimeout(stretched(0.5))
        with pytest.raises(ConnectionRefusedError):
            made.connect((EMPTY.vip(family), 80))


def test_a_datagram_to_a_service_without_endpoints_is_not_permitted(
    older: Testbed, family: int
) -> None:
    """As where kube-proxy's rule refuses it."""
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    to = (EMPTY.vip(family), 80)
    with older.node.socket(domain, socket.SOCK_DGRAM) as made:
        assert made.connect_ex(to) == errno.EPERM
        with pytest.raises(PermissionError):
            made.sendto(b"x", to)
