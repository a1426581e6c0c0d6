"""The agent runs out of something: traffic goes on, the agent says so, and recovers by itself."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from bpfsvc.base import syscalls
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.cluster import LabAgent
from bpfsvc.devtools.lab.dial import tally
from bpfsvc.devtools.lab.load import Kind
from bpfsvc.devtools.lab.patience import wait
from tests.lab.testbed import ONE, WEB, Testbed, built_testbed, objects

pytestmark = pytest.mark.slow

KINDS: Sequence[Kind] = ("connect", "stream", "datagram")


@pytest.fixture(scope="module")
def small_disk() -> Iterator[Path]:
    """A file system of 64 kB, for the agent's history."""
    sandbox.require()
    place = sandbox.ROOT / "full-disk"
    place.mkdir()
    syscalls.mount("tmpfs", str(place), "tmpfs", options="size=65536")
    yield place
    syscalls.unmount(str(place))
    place.rmdir()


@pytest.fixture(scope="module")
def testbed(small_disk: Path) -> Iterator[Testbed]:
    with built_testbed(served=True, layout="routed") as made:
        made.cluster.put("web", *objects(WEB, made.lab.pods))
        made.cluster.start(options=("--history", str(small_disk / "history")))
        yield made


@contextmanager
def traffic(testbed: Testbed) -> Iterator[None]:
    """Clients of all kinds, whose connections do not fail in the block."""
    address = testbed.node.address(4)
    loads = [
        source.load(kind, to, port, seconds=120, interval=0.02)
        for kind in KINDS
        for source, to, port in (
            (testbed.client, address, WEB.node_port),
            (testbed.pod, WEB.vip(4), 80),
        )
    ]
    for load in loads:
        load.more(10)
    yield
    for load in loads:
        load.more(10)
    assert [load.stop().failures for load in loads] == [{}] * len(loads)


def serves_a_change(testbed: Testbed, number: int) -> None:
    """Assert that a new Service works."""
    testbed.cluster.put("one", *objects(ONE[number], testbed.lab.pods[:1]))
    name = testbed.lab.pods[0].name
    wait(
        lambda: tally(testbed.pod, ONE[number].vip(4), 80, count=1, timeout=0.5) == {name: 1},
        "the new Service works",
        60,
    )


def test_traffic_goes_on_while_the_agent_gets_no_processor(testbed: Testbed) -> None:
    """/healthz says no longer that it is well. Afterwards the agent writes what has changed."""
    agent = testbed.agent
    with traffic(testbed):
        agent.process.send_signal(signal.SIGSTOP)
        try:
            testbed.cluster.put("one", *objects(ONE[0], testbed.lab.pods[:1]))
            wait(lambda: not is_well(agent), "/healthz does not say that the agent is well", 30)
        finally:
            agent.process.send_signal(signal.SIGCONT)
        agent.ready()
    serves_a_change(testbed, 0)


def is_well(agent: LabAgent) -> bool:
    """True if /healthz says so."""
    try:
        return agent.health().status == 200
    except OSError:
        return False


def test_traffic_goes_on_when_no_file_can_be_opened(testbed: Testbed) -> None:
    """The agent cannot connect to the API server again, says why, and can as soon as it may."""
    agent = testbed.agent
    pid = agent.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    said = len(agent.log)
    with traffic(testbed):
        # What is open stays so; the next one would need a smaller number.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            testbed.cluster.api.hang_up()
            wait(lambda: "Too many open files" in agent.log[said:], "the agent says so", 60)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        serves_a_change(testbed, 1)
        agent.ready(60)
    assert "Traceback" not in agent.log[said:]


def test_a_full_disk_costs_the_history_and_is_said_in_a_line(
    testbed: Testbed, small_disk: Path
) -> None:
    agent = testbed.agent
    said = len(agent.log)
    with traffic(testbed):
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(1 << 20))
        for number in (2, 3, 2, 3):
            serves_a_change(testbed, number)
        wait(lambda: "No space left on device" in agent.log[said:], "the agent says so", 60)
        filler.unlink()
        serves_a_change(testbed, 0)
    lines = [line for line in agent.log[said:].splitlines() if "No space left" in line]
    assert all(" WARNING " in line for line in lines)
    # Of two files, each perhaps once more: a small write may still have found room.
    assert 0 < len(lines) <= 4
    assert "Traceback" not in agent.log[said:]
    assert agent.health().status == 200
