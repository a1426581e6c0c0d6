"""Other kernels than this machine's. The environment names them: ``KERNELS``, and ``SUITES``.

``guest.sh`` lists the suites. An emulated machine is slow, so it is started once for a kernel, and
each test is the result of one suite. What was seen is written to docs/kernels.md. A suite that
needs a newer kernel is no test on an older one, and a failure wherever the kernel should have it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bpfsvc.datapath.loader.shipped import ship
from tests.kernels.machine import CHECKOUT, THIS_ARCHITECTURE, Machine, switched_on
from tests.kernels.results import Result, write
from tests.kernels.suites import SUITES, runnable

pytestmark = pytest.mark.slow

LIMIT = 65 * 60.0
"""Seconds from the start to the end of the last suite; each suite has a shorter limit."""

ARCHITECTURE = os.environ.get("ARCH", THIS_ARCHITECTURE)
KERNELS = os.environ.get("KERNELS", "5.10 6.1").split()
UNPACKED = CHECKOUT / "build" / "kernels" / ARCHITECTURE

WANTED = os.environ.get("SUITES", " ".join(SUITES)).split()


@pytest.fixture(scope="module", params=KERNELS)
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """A machine with one of the kernels."""
    results = tmp_path_factory.mktemp("results")
    ship(results / "programs")
    suites = runnable(WANTED, request.param)
    with switched_on(results, UNPACKED / request.param, ARCHITECTURE, suites) as made:
        yield made
        of = "" if ARCHITECTURE == "amd64" else f" {ARCHITECTURE}"
        _note(request.param + of, results)


def _note(kernel: str, results: Path) -> None:
    """Write what was seen to the documentation."""
    statuses = {suite: _text(results / f"{suite}.status") for suite in SUITES}
    verified = _text(results / "verified.log")
    if statuses["verified"] == "0":
        seen = json.loads(verified.splitlines()[-1])
        ran = {suite: status == "0" for suite, status in statuses.items() if status}
        write(
            CHECKOUT / "docs" / "kernels.md",
            Result(kernel, _text(results / "kernel"), seen["followed"], seen["without"], ran),
            datetime.now(UTC).date(),
        )


def _text(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""


def test_the_machine_runs_the_kernel_that_was_asked_for(
    machine: Machine, request: pytest.FixtureRequest
) -> None:
    """The machine boots, with the right kernel; "newest" is newer than any of Debian's releases."""
    kernel = request.node.callspec.params["machine"]
    release = machine.file("kernel", LIMIT)
    if kernel == "newest":
        assert int(release.split(".")[0]) >= 7
    else:
        assert release.startswith(f"{kernel}.")


@pytest.mark.parametrize("suite", WANTED)
def test_a_suite_passes_there(machine: Machine, suite: str) -> None:
    """The demonstration, some tests of the lab, and some packet tests.

    ``verified``: every program loads. ``image``: an agent loads what was compiled on this machine's
    kernel, and compiles nothing. ``ipvs``: the choices of the kernel's own ip_vs are those of our
    tables and hashes, and of the model by which the packet tests judge schedulers that compare
    connections. ``netkit``: pods on netkit are served as pods on veth are.
    """
    status = machine.file(f"{suite}.status", LIMIT)
    print(machine.tail(suite))
    assert status == "0"
