"""Reserved ports and forwarding in a network namespace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.base.errors import KernelError, UsageError
from bpfsvc.base.ports import PortRange
from bpfsvc.datapath.sysctl import (
    LOCAL_PORTS,
    RESERVED_PORTS,
    V4_FORWARDING,
    V6_FORWARDING,
    check_ports,
    forwards,
    icmp_limits,
    read,
    release_ports,
    reserve_ports,
    write,
)
from bpfsvc.devtools.lab import sandbox

OURS = PortRange(10000, 10999)


@pytest.fixture(autouse=True, scope="module")
def _sandboxed() -> None:
    sandbox.require()


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = {name: read(name) for name in (LOCAL_PORTS, RESERVED_PORTS)}
    yield
    for name, value in before.items():
        write(name, value)


def test_reserve_and_release() -> None:
    """Ports that others reserved stay when ours are reserved and released."""
    write(RESERVED_PORTS, "8080,9148-9150")
    ours = reserve_ports(OURS)
    assert read(RESERVED_PORTS) == "8080,9148-9150,10000-10999"
    release_ports(ours)
    assert read(RESERVED_PORTS) == "8080,9148-9150"


def test_release_to_nothing() -> None:
    """An empty list is written as an empty list."""
    release_ports(reserve_ports(OURS))
    assert read(RESERVED_PORTS) == ""


def test_a_range_that_was_reserved_for_the_agent_is_released_too() -> None:
    """An init container with more permissions may have reserved it."""
    write(RESERVED_PORTS, "8080,10000-10999")
    release_ports(reserve_ports(OURS))
    assert read(RESERVED_PORTS) == "8080"


def test_overlap_with_others() -> None:
    """Ports of the range that another program had reserved are not ours to release."""
    write(RESERVED_PORTS, "9990-10009,10500")
    ours = reserve_ports(OURS)
    assert ours == (PortRange(10010, 10499), PortRange(10501, 10999))
    assert read(RESERVED_PORTS) == "9990-10999"
    release_ports(ours)
    assert read(RESERVED_PORTS) == "9990-10009,10500"


def test_restart_remembers() -> None:
    """After a restart the ports are still ours; newer reservations of other programs stay."""
    ours = reserve_ports(OURS)
    write(RESERVED_PORTS, read(RESERVED_PORTS) + ",20000")
    again = reserve_ports(OURS, ours)
    assert again == ours
    release_ports(again)
    assert read(RESERVED_PORTS) == "20000"


def test_another_range_replaces() -> None:
    """A run with another range releases the former one."""
    ours = reserve_ports(OURS)
    other = reserve_ports(PortRange(10500, 11499), ours)
    assert read(RESERVED_PORTS) == "10500-11499"
    release_ports(other)
    assert read(RESERVED_PORTS) == ""


def test_many_ranges() -> None:
    """Lists longer than a page of the kernel are kept."""
    write(RESERVED_PORTS, ",".join(str(port) for port in range(10001, 14000, 2)))
    before = read(RESERVED_PORTS)
    assert len(before) > 8192
    release_ports(reserve_ports(PortRange(20000, 20999)))
    assert read(RESERVED_PORTS) == before


def test_disjoint_range_is_accepted() -> None:
    """A range may begin right beside the node's own ports; one port earlier is refused."""
    write(LOCAL_PORTS, "32768 60999")
    check_ports(PortRange(61000, 65535))
    with pytest.raises(UsageError):
        check_ports(PortRange(60999, 65535))
    check_ports(PortRange(29000, 29999))
    with pytest.raises(UsageError):
        check_ports(PortRange(29000, 30000))


def test_overlap_with_local_ports() -> None:
    """The error names the sysctl and the flag that solve it."""
    write(LOCAL_PORTS, "20000 25000")
    with pytest.raises(UsageError) as caught:
        check_ports(PortRange(25000, 26000))
    assert caught.value.message.startswith("--masquerade-ports 25000-26000 ")
    assert "20000-25000" in caught.value.message
    assert LOCAL_PORTS in caught.value.hint


OVERLAPS = {
    "the first NodePort": (PortRange(29000, 30000), PortRange(30000, 32767)),
    "inside the NodePorts": (PortRange(31000, 31100), PortRange(30000, 32767)),
    "a cluster with another NodePort range": (PortRange(9000, 9999), PortRange(9500, 9600)),
}


@pytest.mark.parametrize(("ports", "node_ports"), OVERLAPS.values(), ids=OVERLAPS.keys())
def test_overlap_with_node_ports(ports: PortRange, node_ports: PortRange) -> None:
    """Masquerade ports must not overlap NodePorts either."""
    with pytest.raises(UsageError, match=f"NodePorts {node_ports}"):
        check_ports(ports, node_ports)


def test_node_ports_among_local_ports_must_be_reserved() -> None:
    """The error names the command that reserves them and keeps what others reserved."""
    write(LOCAL_PORTS, "20000 60999")
    write(RESERVED_PORTS, "8080")
    with pytest.raises(UsageError, match="NodePorts 30000-32767 overlap") as caught:
        check_ports(PortRange(10000, 19999))
    command = f"sysctl -w {RESERVED_PORTS}=8080,30000-32767"
    assert command in caught.value.hint
    write(RESERVED_PORTS, "8080,30000-32767")
    check_ports(PortRange(10000, 19999))


@pytest.mark.parametrize("ports", [PortRange(0, 10), PortRange(9, 8), PortRange(65000, 65536)])
def test_an_invalid_range_is_refused(ports: PortRange) -> None:
    """An invalid range is refused before anything is compared."""
    with pytest.raises(UsageError, match="is not a range of ports"):
        check_ports(ports)


@pytest.mark.parametrize(("family", "name"), [(4, V4_FORWARDING), (6, V6_FORWARDING)])
def test_forwarding(family: int, name: str) -> None:
    """Forwarding is read for each family."""
    before = read(name)
    try:
        write(name, "0")
        assert not forwards(family)
        write(name, "1")
        assert forwards(family)
    finally:
        write(name, before)


def test_unknown_sysctl() -> None:
    """A sysctl that this kernel does not have is named."""
    with pytest.raises(KernelError, match=r"net\.ipv4\.nonsense"):
        read("net.ipv4.nonsense")


def test_refused_value() -> None:
    """So is a value that the kernel refuses."""
    with pytest.raises(KernelError, match=r"ip_forward to 'perhaps'"):
        write(V4_FORWARDING, "perhaps")


def test_limits_of_icmp_errors_are_those_of_the_kernel() -> None:
    """The masks are those of types: 3 is IPv4's destination unreachable, 1 is IPv6's."""
    masks = {"net.ipv4.icmp_ratemask": "6160", "net.ipv6.icmp.ratemask": "0,2-127"}
    names = ("net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit", *masks)
    before = {name: read(name) for name in names}
    assert (icmp_limits().per_second, icmp_limits().burst) >= (1, 1)
    try:
        write("net.ipv4.icmp_ratelimit", "2000")
        write("net.ipv6.icmp.ratelimit", "0")
        assert icmp_limits().intervals == {4: 2000, 6: 0}
        for name, value in masks.items():
            write(name, value)
        assert icmp_limits().intervals == {4: None, 6: None}
    finally:
        for name, value in before.items():
            write(name, value)


ESTABLISHED = Path("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established")


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [["--kubeconfig", "/no/such/kubeconfig"], ["--manifests", "/no/such/manifests"]],
    ids=str,
)
def test_a_refused_start_changes_no_sysctl(wrong: list[str], tmp_path: Path) -> None:
    """What is wrong may show only when the source is opened, after all flags were right."""
    ESTABLISHED.write_text("4242")
    command = [sys.executable, "-m", "bpfsvc", "run", *wrong, "--cgroup-root", "none"]
    command += ["--pin-root", str(sandbox.BPF_ROOT / "refused"), "--hostname-override", "here"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode != 0
    assert wrong[1] in done.stderr
    assert ESTABLISHED.read_text() == "4242\n"
