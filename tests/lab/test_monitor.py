"""The interfaces of a node as the kernel lists them, and their changes as they happen."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from bpfsvc.base.address import pack, unpack
from bpfsvc.datapath.netlink.devices import Device, Interfaces
from bpfsvc.datapath.netlink.masquerade import Masquerades
from bpfsvc.datapath.netlink.monitor import Monitor
from bpfsvc.datapath.netlink.network import NetworkReader, read_network
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.patience import stretched, wait


@pytest.fixture(autouse=True, scope="module")
def _sandboxed() -> None:
    sandbox.require()


def ip(*commands: str) -> None:
    """Run commands of iproute2 in one process."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    before = {name for _, name in socket.if_nameindex()}
    yield
    for _, name in socket.if_nameindex():
        if name not in before:
            subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)


def named(network: Interfaces, name: str) -> Device | None:
    return next((device for device in network.devices if device.name == name), None)


def now() -> Interfaces:
    return read_network()


def present(name: str) -> Device:
    device = named(now(), name)
    assert device is not None
    return device


@contextmanager
def following() -> Iterator[tuple[Interfaces, queue.Queue[Interfaces]]]:
    """Return the first state and a queue of the later ones."""
    changes: queue.Queue[Interfaces] = queue.Queue()
    follower = Monitor(changes.put, changes.put)  # type: ignore[arg-type]
    first = follower.start()
    try:
        yield first, changes
        assert follower.alive
    finally:
        follower.stop()
    assert not follower.alive


def await_state(
    changes: queue.Queue[Interfaces], wanted: Callable[[Interfaces], bool]
) -> Interfaces:
    deadline = time.monotonic() + 5
    while True:
        state = changes.get(timeout=max(0.0, deadline - time.monotonic()))
        if wanted(state):
            return state


def test_kinds_and_hardware() -> None:
    """Kind, master, state and the packet format are read."""
    ip(
        "link add br9 type bridge",
        "link add port9 type veth peer name peer9",
        "link set port9 master br9",
        "link set br9 up",
        "link add vx9 type vxlan id 9 dstport 4789",
        "tuntap add tun9 mode tun",
    )
    bridge, port = present("br9"), present("port9")
    assert (bridge.kind, bridge.up, bridge.master) == ("bridge", True, 0)
    assert (port.kind, port.up, port.master) == ("veth", False, bridge.index)
    assert (present("lo").kind, present("vx9").kind) == ("loopback", "vxlan")
    assert (present("tun9").has_ethernet, present("tun9").carries_ip) == (False, True)
    assert bridge.has_ethernet


def test_addresses() -> None:
    """Addresses have scope, prefix, and if the kernel would choose them as a source."""
    ip(
        "link add own9 type veth peer name peer9",
        "link set own9 up",
        "link set peer9 up",
        "addr add 198.51.100.1/24 dev own9",
        "addr add 198.51.100.2/24 dev own9",
        "addr add 169.254.9.1/32 scope link dev own9",
        "addr add 203.0.113.1 peer 203.0.113.2/32 dev own9",
        "addr add 2001:db8:9::1/64 dev own9 nodad",
        "addr add 2001:db8:9::2/64 dev own9 nodad preferred_lft 0",
    )
    addresses = {
        unpack(address.address): (address.prefix, address.scope, address.selectable)
        for address in present("own9").addresses
    }
    link_local = [address for address in addresses if address.startswith("fe80:")]
    assert [addresses.pop(address)[:2] for address in link_local] == [(64, 253)]
    assert addresses == {
        "198.51.100.1": (24, 0, True),
        "198.51.100.2": (24, 0, False),
        "169.254.9.1": (32, 253, True),
        "203.0.113.1": (32, 0, True),
        "2001:db8:9::1": (64, 0, True),
        "2001:db8:9::2": (64, 0, False),
    }


def test_default_routes() -> None:
    """The interface of the default route is known for each family, and 0 is none."""
    assert (now().default_v4, now().default_v6) == (0, 0)
    ip(
        "link add up9 type veth peer name peer9",
        "link set up9 up",
        "link set peer9 up",
        "addr add 198.51.100.1/24 dev up9",
        "route add default via 198.51.100.254",
        "route add ::/0 dev up9",
    )
    index = socket.if_nametoindex("up9")
    network = now()
    assert (network.default_v4, network.default_v6) == (index, index)
    assert Masquerades(network).choice(present("peer9"), 4).default == pack("198.51.100.1")
    try:
        ip("route replace blackhole default")
        assert now().default_v4 == 0
    finally:
        ip("route del blackhole default")


def test_reading_only_what_changed_sees_every_change() -> None:
    """After every kind of change the monitor has what a complete reading returns."""
    steps = (
        "link add new9 type veth peer name peer9",
        "link set new9 up",
        "addr add 198.51.100.1/24 dev new9",
        "addr add 198.51.100.2/24 dev new9",
        "addr del 198.51.100.1/24 dev new9",
        "link set peer9 name other9",
        "link del new9",
    )
    with following() as (_, changes):
        for step in steps:
            ip(step)
            assert await_state(changes, lambda state: state == now()), step


def test_new_and_removed_interfaces_are_reported() -> None:
    """A new interface and its end are reported."""
    with following() as (first, changes):
        assert named(first, "new9") is None
        ip("link add new9 type veth peer name peer9")
        await_state(changes, lambda state: named(state, "new9") is not None)
        ip("link del new9")
        await_state(changes, lambda state: named(state, "new9") is None)


def test_address_and_route_are_reported() -> None:
    """So are addresses of both families and the default route."""
    ip("link add new9 type veth peer name peer9", "link set new9 up", "link set peer9 up")
    with following() as (_, changes):
        for address in ("198.51.100.1/24", "2001:db8:9::1/64"):
            ip(f"addr add {address} dev new9")
            wanted = pack(address.partition("/")[0])
            await_state(
                changes,
                lambda state, wanted=wanted: any(  # type: ignore[misc]
                    address.address == wanted and address.selectable
                    for device in state.devices
                    for address in device.addresses
                ),
            )
        ip("route add default via 198.51.100.254")
        await_state(changes, lambda state: state.default_v4 == socket.if_nametoindex("new9"))


def test_delay() -> None:
    """An interface is reported within 50 ms of its creation, in three cases of nine at least.

    Anything that looks only now and then would be late more often; a busy machine may be late, too.
    """
    delays = []
    with following() as (_, changes):
        for turn in range(9):
            name = f"new9-{turn}"
            ip(f"link add {name} type veth peer name p{name}")
            created = time.monotonic()
            await_state(changes, lambda state, name=name: named(state, name) is not None)  # type: ignore[misc]
            delays.append(time.monotonic() - created)
    assert sorted(delays)[2] < 0.05, delays


def test_nothing_is_missed_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interface created right after the first reading is reported."""
    lists, genuine = 0, NetworkReader.read

    def list_then_add(reader: NetworkReader) -> Interfaces:
        nonlocal lists
        lists += 1
        network = genuine(reader)
        if lists == 1:
            ip("link add new9 type veth peer name peer9")
        return network

    monkeypatch.setattr(NetworkReader, "read", list_then_add)
    with following() as (first, changes):
        assert named(first, "new9") is None
        await_state(changes, lambda state: named(state, "new9") is not None)


def test_no_report_without_change() -> None:
    """An announcement of what the agent does not read is not reported."""
    ip("link add new9 type veth peer name peer9")
    with following() as (_, changes):
        ip("link set new9 mtu 1400", "link set new9 txqueuelen 7", "link set new9 up")
        state = await_state(changes, lambda _: True)
        assert present("new9").up
        assert named(state, "new9") == present("new9")


def losses() -> int:
    """Count what netlink sockets of this network have missed."""
    rows = Path("/proc/self/net/netlink").read_text().splitlines()
    column = rows[0].split().index("Drops")
    return sum(int(row.split()[column]) for row in rows[1:])


def test_overrun() -> None:
    """When events overflow the socket, the final state is still reported."""
    busy, proceed = threading.Event(), threading.Event()
    states: queue.Queue[Interfaces] = queue.Queue()

    def report_slowly(state: Interfaces) -> None:
        states.put(state)
        busy.set()
        assert proceed.wait(10)

    follower = Monitor(report_slowly, states.put)  # type: ignore[arg-type]
    follower.start()
    try:
        ip("link add new9 type veth peer name peer9")
        assert busy.wait(5)
        ip(*[f"link set new9 mtu {1300 + turn % 100}" for turn in range(6000)], "link set new9 up")
        assert losses() > 0
        proceed.set()
        await_state(
            states, lambda state: (device := named(state, "new9")) is not None and device.up
        )
    finally:
        proceed.set()
        follower.stop()


def test_an_error_that_ends_it_is_reported() -> None:
    """A caller that waits for changes must not wait for ever."""
    errors: queue.Queue[Exception] = queue.Queue()

    def fail(_: Interfaces) -> None:
        raise ValueError("unexpected")

    follower = Monitor(fail, errors.put)
    follower.start()
    try:
        ip("link add new8 type veth peer name peer8")
        assert str(errors.get(timeout=10)) == "unexpected"
    finally:
        follower.stop()
        ip("link del new8")


@contextmanager
def starved() -> Iterator[None]:
    """Have other threads of this process get their turn late."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.02)
    busy = threading.Event()

    def compute() -> None:
        while not busy.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        busy.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)


def test_the_latest_state_has_what_was_there_when_it_was_asked_for() -> None:
    """Though the thread that reads it is late."""
    reported = queue.Queue[Interfaces]()
    follower = Monitor(reported.put, reported.put)  # type: ignore[arg-type]
    first = follower.start()
    try:
        assert follower.latest() is first
        with starved():
            for number in range(5):
                ip(f"link add late-{number} type veth peer name peer-{number}")
                assert named(follower.latest(), f"late-{number}")
    finally:
        follower.stop()


def test_the_latest_state_does_not_wait_for_an_end_of_announcements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Routes of a large network change all the time: there is always something to read."""
    monkeypatch.setattr("bpfsvc.datapath.netlink.monitor._LONGEST_WAIT", float("inf"))
    follower, endless = Monitor(Mock(), Mock()), os.eventfd(1)
    follower.start()
    real = follower._socket
    readable = Mock(fileno=lambda: endless, get=real.get, close=real.close)
    monkeypatch.setattr(follower, "_socket", readable)
    asked = threading.Thread(target=follower.latest)
    try:
        asked.start()
        ip("link add more type veth peer name still-more")
        asked.join(stretched(10))
        assert not asked.is_alive()
    finally:
        follower.stop()
        asked.join()
        os.close(endless)


def test_the_latest_state_of_a_monitor_that_has_ended_is_the_last_one() -> None:
    follower = Monitor(Mock(side_effect=OSError), Mock())
    first = follower.start()
    try:
        ip("link add unseen type veth peer name peer")
        wait(lambda: not follower.alive, "the thread has ended")
        assert follower.latest() is not None
        assert follower.latest() is not first
    finally:
        follower.stop()
