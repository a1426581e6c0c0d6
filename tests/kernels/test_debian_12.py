"""Linux 6.1 of Debian 12: an older verifier, no tcx. ``guest.sh`` lists the suites.

The emulated machine is slow, so it is started once, and each test is the result of one suite.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfsvc.datapath.loader.shipped import ship
from tests.kernels.machine import Machine, switched_on

pytestmark = pytest.mark.slow

LIMIT = 65 * 60.0
"""Seconds from the start to the end of the last suite; each suite has a shorter limit."""

SUITES = ("demo", "lab", "sockets", "packets", "shortcuts", "image", "ipvs")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with Linux 6.1."""
    results = tmp_path_factory.mktemp("results")
    ship(results / "programs")
    with switched_on(results) as made:
        yield made


def test_the_kernel_is_linux_6_1(machine: Machine) -> None:
    """The machine boots, with the right kernel."""
    assert machine.file("kernel", LIMIT).startswith("6.1.")


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_passes_there(machine: Machine, suite: str) -> None:
    """The demonstration, some tests of the lab, and some packet tests.

    ``image``: an agent loads what was compiled on this machine's kernel, and compiles nothing.
    ``ipvs``: the choices of the kernel's own ip_vs are those of our tables and hashes, and of the
    model by which the packet tests judge schedulers that compare connections.
    """
    status = machine.file(f"{suite}.status", LIMIT)
    print(machine.tail(suite))
    assert status == "0"
