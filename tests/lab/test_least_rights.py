"""An agent has the capabilities of the table and no others; what is taken away is missed by name.

All agents of the lab run with these rights, so the other tests show what they are enough for.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bpfsvc.base.privileges import CAPABILITIES, Capability
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.cluster import LabAgent
from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.pod import LabPod
from bpfsvc.devtools.lab.rights import granted, limited
from tests.lab.test_endpoint_removal import RESET, Clients, is_over, of_pods
from tests.lab.test_endpoint_removal import backends as backends_of_left
from tests.lab.testbed import WEB, Named, Testbed, built_testbed, objects

pytestmark = pytest.mark.slow

MOVED = Named("moved", 73)

REQUIRED = [capability.name for capability in CAPABILITIES if capability.is_required]

LOADER = """
import sys
from pathlib import Path
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader.bytecode import Bytecode
from bpfsvc.datapath.loader.loader import load_build
from bpfsvc.datapath.loader.source import load
digest = load(Sizes()).code_digest
(file,) = Path(sys.argv[1]).glob(f"{digest}*")
try:
    load_build(Bytecode.decode(file.read_bytes(), digest), Path(sys.argv[2]))
except BpfsvcError as error:
    print(error.message, error.hint, sep=" -> ")
"""
"""Loads the compiled programs without the check of the agent's start: the kernel alone refuses."""

OWNER = """
import socket, sys
made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
made.connect((sys.argv[1], 80))
print("connected", flush=True)
for line in sys.stdin:
    try:
        made.settimeout(float(line))
        made.send(b"who\\n")
        print(made.recv(1000).decode().strip(), flush=True)
    except TimeoutError:
        print("no answer", flush=True)
    except OSError:
        print("closed", flush=True)
"""
ANOTHER_USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """A lab with an API server, whose first node gets agents of several rights."""
    with built_testbed(layout="routed", served=True) as made:
        made.cluster.put("web", *objects(WEB, made.lab.pods))
        made.cluster.put("left", *of_pods(backends_of_left(made), RESET))
        made.cluster.start()
        yield made


@contextmanager
def agent_without(testbed: Testbed, *names: str) -> Iterator[LabAgent]:
    """Run the agent of the first node without some of its capabilities."""
    testbed.cluster.stop(testbed.node)
    testbed.cluster.start(testbed.node, before=limited(names))
    yield testbed.agent
    testbed.cluster.stop(testbed.node)
    testbed.cluster.start(testbed.node)


def status_of(agent: LabAgent) -> dict[str, str]:
    """Return the fields of the agent's ``/proc/PID/status``."""
    lines = Path(f"/proc/{agent.process.pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)


def test_all_threads_of_the_agent_share_one_heap(testbed: Testbed) -> None:
    """A thread's own heap of glibc has an address that is a multiple of 64 MB."""
    maps = Path(f"/proc/{testbed.agent.process.pid}/maps").read_text().splitlines()
    starts = [int(line.partition("-")[0], 16) for line in maps if " rw-p 00000000 00:00 0" in line]
    assert len(starts) > 10
    assert not [hex(start) for start in starts if not start % (64 << 20)]


def test_the_agents_of_the_lab_have_the_capabilities_of_the_table_and_no_others(
    testbed: Testbed,
) -> None:
    told = status_of(testbed.agent)
    wanted = f"{sum(1 << capability.number for capability in granted()):016x}"
    assert (told["CapEff"], told["CapPrm"], told["CapBnd"]) == (wanted, wanted, wanted)
    assert told["NoNewPrivs"] == "1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_they_are_enough_to_take_over_a_node_without_a_complaint(
    testbed: Testbed, number: signal.Signals
) -> None:
    cluster, node = testbed.cluster, testbed.node
    cluster.agents.pop(node.name).end(number)
    cluster.start(node)
    for place in (testbed.pod, node):
        for family in (4, 6):
            assert ask(place, WEB.vip(family), 80).pod in {pod.name for pod in testbed.lab.pods}
    log = cluster.agents[node.name].log
    assert [line for line in log.splitlines() if " INFO " not in line] == []


COMMANDS = (
    ("status",),
    ("services", "--stats"),
    ("top", "--once"),
    ("maps", "dump"),
    ("history",),
    ("doctor",),
    ("explain", "--from", "pod", "{pod}", "TCP", f"{WEB.vip(4)}:80"),
    ("explain", "--live", "--for", "0.1", "--from", "pod", "{pod}", "TCP", f"{WEB.vip(4)}:80"),
    ("observe", "--summary", "--for", "1"),
    ("cleanup", "--kube-proxy", "--dry-run"),
)
"""What the handbook runs by ``kubectl exec``, where a command has the rights of the container."""


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_they_are_enough_for_a_command_in_the_agents_container(
    testbed: Testbed, words: tuple[str, ...]
) -> None:
    pod = testbed.pod.address(4)
    arguments = [word.format(pod=pod) for word in words]
    done = testbed.cluster.command(testbed.node, *arguments, before=limited())
    assert done.returncode == 0, done.stderr
    assert done.stdout or done.stderr
    assert "Error" not in done.stderr


# -- each capability by itself --


def does_not_start(testbed: Testbed, name: str) -> None:
    """The command says it before it changes anything."""
    done = testbed.cluster.command(
        testbed.node, "run", *testbed.cluster.flags(testbed.node), before=limited([name])
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: this process lacks {name}\n"
        "Hint: give the container these capabilities, or run it privileged\n"
    )


def sends_no_resets(testbed: Testbed, name: str) -> None:
    """The next packet of a client of packets is answered instead."""
    gone, stays = backends_of_left(testbed)
    with agent_without(testbed, name) as agent, ExitStack() as stack:
        clients = Clients(testbed, "client", 4, stack)
        testbed.cluster.apply("left", *of_pods([stays], RESET))
        agent.expect(f"(the agent needs {name} to send them)")
        assert not any(map(is_over, clients.by_pod[gone.name]))
    testbed.cluster.apply("left", *of_pods([gone, stays], RESET))


@contextmanager
def owner(testbed: Testbed, address: str) -> Iterator[Callable[[], str]]:
    """Run another user's process with a connected socket; it asks who answers."""
    process = testbed.node.popen(
        [*ANOTHER_USER, "/usr/bin/python3", "-c", OWNER, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    asked, told = process.stdin, process.stdout
    assert asked
    assert told

    def who() -> str:
        asked.write(f"{stretched(2)}\n".encode())
        asked.flush()
        line = told.readline().decode().strip()
        return str(json.loads(line)["pod"]) if line.startswith("{") else line

    assert told.readline() == b"connected\n"
    try:
        yield who
    finally:
        asked.close()
        process.wait(stretched(10))
        told.close()


def move(testbed: Testbed, pod: LabPod) -> None:
    """Give a Service this endpoint alone."""
    testbed.cluster.apply(MOVED.name, *objects(MOVED, [pod]))


def closes_sockets(testbed: Testbed, name: str) -> None:
    """A connected UDP socket of another user is closed when its backend goes."""
    pods = testbed.lab.pods
    move(testbed, pods[0])
    with agent_without(testbed, name) as agent, owner(testbed, MOVED.vip(4)) as who:
        assert who() == pods[0].name
        move(testbed, pods[1])
        agent.expect("1 connected UDP sockets were closed, as their backend is gone")
        assert f"and had {name}" in agent.log
        assert who() == "closed"


def cannot_make_maps(testbed: Testbed, name: str) -> None:
    """Before Linux 5.11 maps are locked memory; later no agent needs the right, nor has it."""
    testbed.cluster.stop(testbed.node)
    before = [*limited([name]), "prlimit", "--memlock=0:0"]
    agent = testbed.cluster.launch(testbed.node, before=before)
    if any(capability.name == name for capability in granted()):
        assert agent.process.wait(stretched(30)) == 1
        assert f"before Linux 5.11 this needs {name}" in agent.log
        testbed.cluster.agents.pop(testbed.node.name)
    else:
        agent.ready()
        testbed.cluster.stop(testbed.node)
    testbed.cluster.start(testbed.node)


MISSED: dict[str, Callable[[Testbed, str], None]] = {
    **dict.fromkeys(REQUIRED, does_not_start),
    "CAP_NET_RAW": sends_no_resets,
    "CAP_SYS_PTRACE": closes_sockets,
    "CAP_SYS_RESOURCE": cannot_make_maps,
}


@pytest.mark.parametrize("capability", CAPABILITIES, ids=[made.name for made in CAPABILITIES])
def test_a_capability_that_is_taken_away_is_missed(
    testbed: Testbed, capability: Capability
) -> None:
    MISSED[capability.name](testbed, capability.name)


@pytest.mark.parametrize("name", [*REQUIRED, ""])
def test_the_kernel_refuses_the_programs_without_what_is_required(
    testbed: Testbed, name: str
) -> None:
    """So the check at the start asks for no more than the kernel does."""
    directory = testbed.node.pin_root.with_name(f"loaded-without-{name}")
    loader = [sys.executable, "-c", LOADER, str(sandbox.COMPILED), str(directory)]
    told = testbed.node.run([*limited([name]), *loader]).stdout
    shutil.rmtree(directory, ignore_errors=True)
    if name:
        error, hint = told.split(" -> ")
        assert re.search("cannot be made|refuses the program", error)
        assert name in hint
    else:
        assert told == ""


def test_the_socket_of_another_users_process_is_moved_with_them(testbed: Testbed) -> None:
    pods = testbed.lab.pods
    move(testbed, pods[0])
    with owner(testbed, MOVED.vip(4)) as who:
        assert who() == pods[0].name
        move(testbed, pods[1])
        wait(lambda: who() == pods[1].name, "the socket has another backend")
