"""Linux 6.1, Debian 12's own: an older verifier, no tcx. What runs there is listed in ``guest.sh``.

The machine is emulated and slow, so that it is switched on once, and each test here is the verdict
of one suite in it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernels.machine import Machine, switched_on

pytestmark = pytest.mark.slow

LIMIT = 60 * 60.0
"""Seconds from switching on until the last suite must have ended; the suites' own are shorter."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with that kernel."""
    with switched_on(tmp_path_factory.mktemp("results")) as made:
        yield made


def test_the_kernel_is_linux_6_1(machine: Machine) -> None:
    """It boots, and it is the one that is meant."""
    assert machine.file("kernel", LIMIT).startswith("6.1.")


@pytest.mark.parametrize("suite", ["demo", "lab", "sockets", "packets", "shortcuts"])
def test_a_suite_passes_there(machine: Machine, suite: str) -> None:
    """The demonstration, shares of the lab's tests and of those of single packets."""
    status = machine.file(f"{suite}.status", LIMIT)
    print(machine.tail(suite))
    assert status == "0"
