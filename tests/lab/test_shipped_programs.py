"""The first start of an agent whose image carries the compiled programs: real sockets, no compiler.

The agent has no compiled programs of its own, and its Python cannot import bcc, unless a test says
that it may.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader.bytecode import Bytecode
from bpfsvc.datapath.loader.shipped import ship
from bpfsvc.datapath.loader.source import load
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.cluster import LabAgent
from bpfsvc.devtools.lab.dial import tally
from bpfsvc.devtools.lab.patience import wait
from tests.lab.testbed import WEB, Testbed, built_testbed, objects

_STARTED = "compiler-started"

_COMPILE_SECONDS = 120.0
"""Two are usual; a busy machine has taken fifty."""


class Fresh(NamedTuple):
    """A node on which no agent has run, and what an image would carry."""

    testbed: Testbed
    programs: Path
    place: Path

    @property
    def cache(self) -> Path:
        """Where the agent keeps what it compiles."""
        return self.place / "cache"

    @property
    def compiled(self) -> bool:
        """True if a compiler was started."""
        return (self.place / _STARTED).exists()

    def start(self, *options: str, bcc: bool = False) -> str:
        """Run an agent until it is ready; return its log."""
        agent = self.launch(*options, bcc=bcc)
        agent.ready(_COMPILE_SECONDS)
        return agent.log

    def launch(self, *options: str, bcc: bool) -> LabAgent:
        """Start an agent. Without ``bcc`` a compiler that it starts finds none."""
        fake = self.place / "bcc"
        fake.mkdir(exist_ok=True)
        mark = f"open({str(self.place / _STARTED)!r}, 'w').close()\n"
        (fake / "__init__.py").write_text(f"{mark}raise ModuleNotFoundError('bcc')\n")
        environment = {**os.environ, **({} if bcc else {"PYTHONPATH": str(self.place)})}
        words = ["--cache", str(self.cache), "--programs", str(self.programs), *options]
        return self.testbed.cluster.launch(self.testbed.node, options=words, env=environment)

    def balances(self) -> bool:
        """True if clients in a pod and on the node reach all endpoints."""
        names = {pod.name for pod in self.testbed.lab.pods}
        return all(
            set(tally(client, WEB.vip(family), 80, count=30)) == names
            for client in (self.testbed.pod, self.testbed.node)
            for family in (4, 6)
        )


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the build of an image makes; on another kernel, the one made on the host."""
    sandbox.require()
    if made := os.environ.get("BPFSVC_PROGRAMS"):
        (file,) = Path(made).iterdir()
        return file
    return ship(tmp_path_factory.mktemp("share") / "programs")


@pytest.fixture
def fresh(shipped: Path, tmp_path: Path) -> Iterator[Fresh]:
    """A node of its own for each test: a first start is what is tested."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / shipped.name).write_bytes(shipped.read_bytes())
    with built_testbed(layout="routed", nodes=1) as testbed:
        testbed.cluster.put("services", *objects(WEB, testbed.lab.pods))
        yield Fresh(testbed, programs, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), ("--max-connections", "12345", "--max-direct-flows", "1000", "--max-backends", "99")],
    ids=["defaults", "other sizes"],
)
def test_the_first_start_with_programs_of_the_image_compiles_nothing(
    fresh: Fresh, options: tuple[str, ...]
) -> None:
    log = fresh.start(*options)
    assert fresh.balances()
    assert not fresh.compiled
    assert "compil" not in log
    assert not fresh.cache.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gc", "egress"])
def test_programs_that_the_kernel_refuses_are_compiled_and_the_log_says_so(
    fresh: Fresh, shipped: Path, name: str
) -> None:
    """The image's file of this build has an instruction that no verifier accepts.

    When the kernel finds that in ``egress``, Services are being written to the maps already.
    """
    build = Bytecode.decode(shipped.read_bytes(), load(Sizes()).code_digest)
    programs = tuple(
        replace(program, code=bytes(8) + program.code[8:]) if program.name == name else program
        for program in build.programs
    )
    path = fresh.programs / shipped.name
    path.write_bytes(replace(build, programs=programs).encode())
    log = fresh.start(bcc=True)
    assert fresh.balances()
    (line,) = (line for line in log.splitlines() if "compil" in line)
    assert f"compiling anew: {path} does not load: this kernel" in line
    assert f"the program {name}" in line
    assert [file.name for file in fresh.cache.iterdir()] == [shipped.name]


@pytest.mark.slow
def test_an_agent_that_compiles_ends_when_it_is_asked_to(fresh: Fresh) -> None:
    """The kubelet kills a pod that takes longer than its grace period, and waits for that long."""
    for file in fresh.programs.iterdir():
        file.unlink()
    agent = fresh.launch(bcc=True)
    wait(lambda: bool(compilers(agent)), "the agent compiles", _COMPILE_SECONDS)
    (compiler,) = compilers(agent)
    assert agent.end() == 0
    assert not compiler.is_running()
    assert not fresh.cache.exists()
    assert "rror" not in agent.log


def compilers(agent: LabAgent) -> list[psutil.Process]:
    """Return the compilers that an agent has started."""
    children = psutil.Process(agent.process.pid).children()
    return [child for child in children if "bpfsvc.datapath.loader.compiler" in child.cmdline()]
