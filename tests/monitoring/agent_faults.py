"""Faults of agents: one that hangs, is killed or cut off, and programs that touch its maps."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bpfsvc.base import address
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.lab.patience import wait
from tests.lab.testbed import Named
from tests.monitoring.fault import Made, filtered, nothing
from tests.monitoring.scene import CANARY, FACTOR, PARTS, Scene, replace

WAITING = Named("waiting", 94)
SLOW = Named("slow", 95)
ASTRAY = Named("astray", 96)

_CONTINUE, _DETACH, _SEIZE, _INTERRUPT = 7, 17, 0x4206, 0x4207
"""Requests of ptrace(2)."""

_EVERY_THREAD = 0x40000000
"""__WALL of waitpid(2)."""

_PENDING = "bpfsvc_oldest_pending_change_age_seconds"


def _trace(request: int, thread: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(ctypes.c_long(request), ctypes.c_long(thread), None, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def stuck(scene: Scene, part: str) -> Iterator[None]:
    """Stop the thread of an agent that writes to the kernel, as a hung disk would.

    The thread must hold no lock that the metrics need, so it is stopped anew until they come.
    """
    thread = scene.cluster.agents[scene.node(part).name].process.pid
    _trace(_SEIZE, thread)
    try:
        while not _stopped(scene, part, thread):
            _trace(_CONTINUE, thread)
            wait(lambda: _speaks(scene, part), "the agent has metrics", 30)
        yield
    finally:
        _trace(_DETACH, thread)


def _stopped(scene: Scene, part: str, thread: int) -> bool:
    """Stop a thread that waits for something; True if the others go on."""
    status = Path(f"/proc/{thread}/task/{thread}/stat")
    wait(lambda: status.read_text().rpartition(")")[2].split()[0] == "S", "the thread waits", 30)
    _trace(_INTERRUPT, thread)
    os.waitpid(thread, _EVERY_THREAD)
    return _speaks(scene, part)


def _speaks(scene: Scene, part: str) -> bool:
    with suppress(OSError):
        scene.metric(part, _PENDING)
        return True
    return False


@contextmanager
def thread_that_hangs(scene: Scene) -> Made:
    """An agent receives changes and writes none."""
    with stuck(scene, "stuck"):
        scene.apply(WAITING, scene.lab.pods[:1])
        yield nothing


@contextmanager
def thread_that_is_slow(scene: Scene) -> Made:
    """Each change of an agent waits for more than two seconds."""
    turns = 0

    def change() -> None:
        nonlocal turns
        turns += 1
        with stuck(scene, "small"):
            scene.apply(SLOW, scene.lab.pods[: 1 + turns % 2])
            # The agent may be mute after all, and is asked again by the next change.
            with suppress(OSError):
                wait(lambda: scene.metric("small", _PENDING) > 2.5, "the change has waited", 5)

    yield change


@contextmanager
def removed_pins(scene: Scene) -> Made:
    """Another program removes the pins."""
    shutil.rmtree(scene.node("web").pin_root)
    yield nothing


@contextmanager
def changed_entries(scene: Scene) -> Made:
    """Another program removes entries of a map."""
    scene.apply(ASTRAY, scene.lab.pods[:1])
    node = scene.node("canary")
    scene.cluster.await_entry(node, ASTRAY.vip(4), 80, timeout=30)

    def remove() -> None:
        pinned = Pinned(PinRoot(node.pin_root).current)
        try:
            key = pinned.layout.maps["frontends"].key.pack(
                {"address": address.pack(ASTRAY.vip(4)), "port": 80, "protocol": 6}
            )
            pinned.map("frontends").delete(key)
        finally:
            pinned.close()

    yield remove


@contextmanager
def another_version(scene: Scene) -> Made:
    """A canary was forgotten."""
    yield nothing
    text, other = CANARY["bpfsvc/__init__.py"]
    replace(scene.canary / "bpfsvc" / "__init__.py", other, text)
    scene.cluster.stop(scene.node("canary"))
    scene.launch("canary")
    scene.ready("canary")


@contextmanager
def boot_without_api_server(scene: Scene) -> Made:
    """A node boots and cannot reach the API server."""
    node = scene.node("cut_off")
    scene.cluster.stop(node)
    assert scene.cluster.snapshot_file(node).exists()
    scene.cluster.command(node, "cleanup")
    with filtered(node, "cut", "output", "tcp dport 6443 reject with tcp reset"):
        scene.launch("cut_off", "--last-good-after", "500ms")
        yield nothing


@contextmanager
def crashes(scene: Scene) -> Made:
    """An agent ends and is started again, as often as Prometheus sees that."""
    node, seen = scene.node("restarted"), ""
    started = f'process_start_time_seconds{{instance="{scene.instance("restarted")}"}}'

    def restart() -> None:
        nonlocal seen
        result = scene.servers[FACTOR].get("query", query=started)["result"]
        if result and (at := result[0]["value"][1]) != seen:
            seen = at
            scene.cluster.agents.pop(node.name).end(signal.SIGKILL)
            scene.launch("restarted")

    yield restart


@contextmanager
def no_agents(scene: Scene) -> Made:
    """All agents end."""
    for part in PARTS:
        scene.cluster.kill(scene.node(part))
    yield nothing
    scene.launch("web")
