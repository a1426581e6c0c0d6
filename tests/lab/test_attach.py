"""Programs on the tc hooks of real interfaces, beside other programs."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from bpfsvc.base.attachment import PRIORITY
from bpfsvc.base.errors import KernelError
from bpfsvc.datapath.attach import tcx
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink import tc
from bpfsvc.datapath.netlink.hooks import HANDLE, DeviceGone, ForeignFilter, ForeignQdisc, Hook
from bpfsvc.datapath.netlink.tc import attach, attached, detach
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.namespace import Namespace

TC_ACT_UNSPEC, TC_ACT_SHOT = -1, 2
EXPERIMENTAL = 0x88B5  # EtherType of IEEE 802 for experiments: no stack answers it
FRAME = b"\x02\0\0\0\0\x02" + b"\x02\0\0\0\0\x01" + struct.pack("!H", EXPERIMENTAL) + bytes(46)


@pytest.fixture(autouse=True, scope="module")
def _private() -> None:
    sandbox.require()


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


def shown(what: str) -> str:
    return subprocess.run(["tc", *what.split()], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def near() -> Iterator[int]:
    """Return the index of ``near``, one end of a veth; the other is ``far``."""
    ip("link add near address 02:00:00:00:00:01 type veth peer name far")
    ip("link set near up")
    ip("link set far up")
    yield socket.if_nametoindex("near")
    subprocess.run(["ip", "link", "del", "near"], check=False, capture_output=True)


@contextmanager
def program(verdict: int) -> Iterator[int]:
    """Load ``return verdict`` as a tc program: two instructions, without any compiler."""
    code = struct.pack("=BBhiBBhi", 0xB7, 0, 0, verdict, 0x95, 0, 0, 0)
    text, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack(
        "=IIQQIIQ", 3, 2, ctypes.addressof(text), ctypes.addressof(licence), 0, 0, 0
    )
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(321, 5, ctypes.create_string_buffer(attributes), len(attributes))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "BPF_PROG_LOAD")
    try:
        yield fd
    finally:
        os.close(fd)


def program_id(fd: int) -> int:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("prog_id:"))


def foreign(
    ifindex: int, hook: Hook, fd: int, priority: int, handle: int, protocol: int = 0x0003
) -> None:
    """Attach as another program would."""
    subprocess.run(["tc", "qdisc", "add", "dev", "near", "clsact"], capture_output=True)
    with IPRoute() as route:
        route.tc(
            "add-filter",
            "bpf",
            ifindex,
            handle,
            parent=hook.value,
            prio=priority,
            protocol=protocol,
            fd=fd,
            name="foreign",
            direct_action=True,
        )


@pytest.mark.parametrize("hook", Hook, ids=str)
def test_attach_and_list(near: int, hook: Hook) -> None:
    """A filter is listed with its priority, its name and the id of its program."""
    with program(TC_ACT_UNSPEC) as fd:
        done = attach(near, hook, fd, "bpfsvc/test")
        (attached_program,) = attached(near, hook)
        assert attached_program.ours
        assert (attached_program.priority, attached_program.handle, attached_program.protocol) == (
            PRIORITY,
            HANDLE,
            3,
        )
        assert (attached_program.name, attached_program.program) == (
            "bpfsvc/test",
            program_id(fd),
        )
        assert (done.made_qdisc, done.replaced, done.ahead) == (True, False, ())
        (other,) = set(Hook) - {hook}
        assert attached(near, other) == ()
        assert "direct-action" in shown(f"filter show dev near {hook}")


def test_a_name_without_our_prefix_is_refused(near: int) -> None:
    """A filter that could not be recognised later is not attached."""
    with program(TC_ACT_UNSPEC) as fd, pytest.raises(ValueError, match="bpfsvc"):
        attach(near, Hook.INGRESS, fd, "something")


def test_second_attach_replaces(near: int) -> None:
    """A newer program replaces the older one: there is never a second filter."""
    with program(TC_ACT_UNSPEC) as old, program(TC_ACT_UNSPEC) as new:
        attach(near, Hook.INGRESS, old, "bpfsvc/old")
        done = attach(near, Hook.INGRESS, new, "bpfsvc/new")
        (attached_program,) = attached(near, Hook.INGRESS)
        assert (attached_program.name, attached_program.program) == (
            "bpfsvc/new",
            program_id(new),
        )
        assert (done.made_qdisc, done.replaced) == (False, True)


def test_another_priority_moves(near: int) -> None:
    """After a restart with another --tc-priority, the filter at the old one is gone."""
    with program(TC_ACT_UNSPEC) as fd:
        attach(near, Hook.INGRESS, fd, "bpfsvc/test", 7)
        attach(near, Hook.INGRESS, fd, "bpfsvc/test", 9)
    assert [attached_program.priority for attached_program in attached(near, Hook.INGRESS)] == [9]


def test_detach_leaves_no_trace(near: int) -> None:
    """A qdisc that we made is removed with our filters, even if another process removes them."""
    before = shown("qdisc show dev near")
    with program(TC_ACT_UNSPEC) as fd:
        for hook in Hook:
            attach(near, hook, fd, "bpfsvc/test")
    assert "clsact" in shown("qdisc show dev near")
    assert detach(near) is True
    assert shown("qdisc show dev near") == before
    assert detach(near) is False


def test_qdisc_of_others_stays(near: int) -> None:
    """A clsact that another program made stays, though empty."""
    shown("qdisc add dev near clsact")
    with program(TC_ACT_UNSPEC) as fd:
        assert attach(near, Hook.INGRESS, fd, "bpfsvc/test").made_qdisc is False
    detach(near)
    assert attached(near, Hook.INGRESS) == ()
    assert "clsact" in shown("qdisc show dev near")


def test_qdisc_made_again_by_others_stays(near: int) -> None:
    """Our mark goes with our qdisc: the next one belongs to the program that made it."""
    with program(TC_ACT_UNSPEC) as fd:
        attach(near, Hook.INGRESS, fd, "bpfsvc/test")
        shown("qdisc del dev near clsact")
        shown("qdisc add dev near clsact")
        attach(near, Hook.INGRESS, fd, "bpfsvc/test")
    detach(near)
    assert "clsact" in shown("qdisc show dev near")


@pytest.mark.parametrize("hook", Hook, ids=str)
def test_filter_of_others_stays(near: int, hook: Hook) -> None:
    """Another program's filter stays when ours are detached, with the qdisc that it uses."""
    with program(TC_ACT_UNSPEC) as fd:
        attach(near, Hook.INGRESS, fd, "bpfsvc/test")
        foreign(near, hook, fd, PRIORITY, 1)
        detach(near)
        (left,) = attached(near, hook)
        assert (left.name, left.ours, left.program) == ("foreign", False, program_id(fd))


TAKEN: dict[str, tuple[int, int]] = {
    "same priority and handle": (HANDLE, 0x0003),
    "same priority, only IPv4": (1, 0x0800),
}


@pytest.mark.parametrize(("handle", "protocol"), TAKEN.values(), ids=TAKEN.keys())
def test_a_taken_priority_and_handle_is_an_error(near: int, handle: int, protocol: int) -> None:
    """Another program's filter is not replaced; the error names it and what to do."""
    with program(TC_ACT_UNSPEC) as fd:
        foreign(near, Hook.EGRESS, fd, PRIORITY, handle, protocol)
        before = attached(near, Hook.EGRESS)
        with pytest.raises(ForeignFilter) as caught:
            attach(near, Hook.EGRESS, fd, "bpfsvc/test")
        assert attached(near, Hook.EGRESS) == before
        assert caught.value.message.startswith("near: ")
        assert "egress" in caught.value.message
        assert "'foreign'" in caught.value.message
        assert "--tc-priority" in caught.value.hint
        attach(near, Hook.EGRESS, fd, "bpfsvc/test", PRIORITY + 1)
        assert len(attached(near, Hook.EGRESS)) == 2


def test_a_filter_of_another_kind_takes_the_whole_priority(near: int) -> None:
    """A filter that is not a bpf program excludes ours from its whole priority."""
    with program(TC_ACT_UNSPEC) as fd:
        shown("qdisc add dev near clsact")
        classifier = f"filter add dev near ingress prio {PRIORITY} protocol all u32"
        shown(f"{classifier} match ip dst 192.0.2.1")
        with pytest.raises(ForeignFilter, match="taken by another program's filter: u32 at"):
            attach(near, Hook.INGRESS, fd, "bpfsvc/test")


def test_filters_that_run_before_ours(near: int) -> None:
    """Filters of others that see packets before ours are reported, those after ours are not."""
    with program(TC_ACT_UNSPEC) as fd:
        foreign(near, Hook.INGRESS, fd, 1, 1)
        foreign(near, Hook.INGRESS, fd, PRIORITY, 1)
        foreign(near, Hook.INGRESS, fd, 500, 1)
        done = attach(near, Hook.INGRESS, fd, "bpfsvc/test")
    assert [attached_program.priority for attached_program in done.ahead] == [1, PRIORITY]


def test_ingress_qdisc_is_refused(near: int) -> None:
    """An ``ingress`` qdisc would run our egress program at ingress: refused, untouched."""
    shown("qdisc add dev near ingress")
    with program(TC_ACT_UNSPEC) as fd, pytest.raises(ForeignQdisc, match=r"near: .*'ingress'"):
        attach(near, Hook.EGRESS, fd, "bpfsvc/test")
    assert "ingress" in shown("qdisc show dev near")
    assert shown("filter show dev near ingress") == ""


def test_kernel_refusal_names_the_interface(near: int) -> None:
    """A refusal is reported with the interface, the task and the kernel's reason."""
    with Path("/dev/null").open() as no_program, pytest.raises(KernelError) as caught:
        attach(near, Hook.INGRESS, no_program.fileno(), "bpfsvc/test")
    assert caught.value.message.startswith("near: cannot attach bpfsvc/test: ")


DEEDS: dict[str, Callable[[int, int], object]] = {
    "attach": lambda ifindex, fd: attach(ifindex, Hook.INGRESS, fd, "bpfsvc/test"),
    "list": lambda ifindex, _: attached(ifindex, Hook.EGRESS),
    "detach": lambda ifindex, _: detach(ifindex),
}


@pytest.mark.parametrize("task", DEEDS.values(), ids=DEEDS.keys())
def test_a_removed_interface_is_a_distinct_error(
    near: int, task: Callable[[int, int], object]
) -> None:
    """An interface that is gone has an error of its own."""
    ip("link del near")
    with program(TC_ACT_UNSPEC) as fd, pytest.raises(DeviceGone):
        task(near, fd)


@pytest.mark.parametrize("step", ["_make_qdisc", "_filters", "_refuse_foreign"])
def test_interface_vanishes_while_attaching(
    near: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may vanish after any step of attaching."""
    genuine = getattr(tc, step)

    def step_then_vanish(*arguments: object) -> object:
        result = genuine(*arguments)
        ip("link del near")
        return result

    monkeypatch.setattr(tc, step, step_then_vanish)
    with program(TC_ACT_UNSPEC) as fd, pytest.raises(DeviceGone):
        attach(near, Hook.INGRESS, fd, "bpfsvc/test")


def pour(sent: Synchronized[int]) -> None:
    """Send frames into ``near`` as fast as they go, until killed."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind(("near", 0))
        while True:
            try:
                out.send(FRAME)
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # the sender's error for a drop at egress
                    raise
            sent.value += 1


@contextmanager
def flood() -> Iterator[Synchronized[int]]:
    """Keep frames flowing into ``near``; return their running number."""
    context = multiprocessing.get_context("fork")
    sent: Synchronized[int] = context.Value("q", 0)
    process = context.Process(target=pour, args=(sent,), daemon=True)
    process.start()
    try:
        yield sent
    finally:
        process.kill()
        process.join()


@contextmanager
def tap() -> Iterator[socket.socket]:
    """Listen at ``far`` behind its ingress hook: a packet socket gets the frames that pass it."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EXPERIMENTAL)) as seen:
        seen.bind(("far", EXPERIMENTAL))
        seen.settimeout(5)
        yield seen


def silent(seen: socket.socket) -> bool:
    seen.setblocking(False)
    try:
        seen.recv(100)
    except BlockingIOError:
        return True
    return False


def drain(seen: socket.socket) -> None:
    while not silent(seen):
        pass


def await_progress(sent: Synchronized[int], frames: int) -> None:
    goal, deadline = sent.value + frames, time.monotonic() + 5
    while sent.value < goal:
        assert time.monotonic() < deadline, "the flood has stopped"
        os.sched_yield()


@pytest.mark.parametrize(("hook", "interface"), [(Hook.EGRESS, "near"), (Hook.INGRESS, "far")])
def test_replacement_is_atomic(near: int, hook: Hook, interface: str) -> None:
    """While a program that drops is replaced 200 times by another, no frame passes."""
    ifindex = socket.if_nametoindex(interface)
    assert near
    with (
        program(TC_ACT_SHOT) as one,
        program(TC_ACT_SHOT) as two,
        tap() as seen,
        flood() as sent,
    ):
        assert seen.recv(100), "without a program frames arrive"
        attach(ifindex, hook, one, "bpfsvc/one")
        await_progress(sent, 10)
        drain(seen)
        began = sent.value
        for turn in range(200):
            assert attach(ifindex, hook, (two, one)[turn % 2], f"bpfsvc/{turn}").replaced
        await_progress(sent, 10)
        assert sent.value - began > 200, "frames were sent all the time"
        assert silent(seen)
        detach(ifindex)
        seen.settimeout(5)
        assert seen.recv(100), "frames arrive again"


def test_the_flood_finds_a_gap(near: int) -> None:
    """Frames do pass when a filter is removed and added: the test before this one can fail."""
    with program(TC_ACT_SHOT) as fd, tap() as seen, flood() as sent:
        attach(near, Hook.EGRESS, fd, "bpfsvc/one")
        await_progress(sent, 10)
        drain(seen)
        for _ in range(200):
            detach(near)
            attach(near, Hook.EGRESS, fd, "bpfsvc/one")
        assert not silent(seen)


def test_a_link_to_another_namespaces_interface_is_none_to_ours(near: int) -> None:
    """Indexes are numbered in each network namespace, and a link only tells the index."""
    root = PinRoot(sandbox.BPF_ROOT / "two-namespaces")
    root.create()
    other = Namespace("other", prefix="attach-")
    try:
        other.run(f"ip link add there index {near} type veth peer name far".split())
        with program(TC_ACT_UNSPEC) as mine:
            with other.entered():
                tcx.attach(root, near, Hook.INGRESS, mine)
                assert tcx.program_id(root, near, Hook.INGRESS)
            assert not tcx.program_id(root, near, Hook.INGRESS)
            tcx.attach(root, near, Hook.INGRESS, mine)
            assert tcx.programs(near, Hook.INGRESS) == (tcx.program_id(root, near, Hook.INGRESS),)
    finally:
        other.close()
        shutil.rmtree(root.path)
