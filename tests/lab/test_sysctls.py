"""Reserved ports and forwarding in a network namespace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfsvc.datapath.sysctls import (
    LOCAL_PORTS,
    RESERVED_PORTS,
    V4_FORWARDING,
    V6_FORWARDING,
    PortRange,
    check_ports,
    forwards,
    read,
    release_ports,
    reserve_ports,
    write,
)
from bpfsvc.errors import KernelError, UsageError
from bpfsvc.lab import sandbox

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
    """What others reserved stays through our coming and going."""
    write(RESERVED_PORTS, "8080,9148-9150")
    ours = reserve_ports(OURS)
    assert read(RESERVED_PORTS) == "8080,9148-9150,10000-10999"
    release_ports(ours)
    assert read(RESERVED_PORTS) == "8080,9148-9150"


def test_release_to_nothing() -> None:
    """An empty list is written as such."""
    release_ports(reserve_ports(OURS))
    assert read(RESERVED_PORTS) == ""


def test_what_was_reserved_for_us_is_ours() -> None:
    """By a container that was started before the agent, and may do more."""
    write(RESERVED_PORTS, "8080,10000-10999")
    release_ports(reserve_ports(OURS))
    assert read(RESERVED_PORTS) == "8080"


def test_overlap_with_others() -> None:
    """Ports of the range that somebody else had reserved are not ours to release."""
    write(RESERVED_PORTS, "9990-10009,10500")
    ours = reserve_ports(OURS)
    assert ours == (PortRange(10010, 10499), PortRange(10501, 10999))
    assert read(RESERVED_PORTS) == "9990-10999"
    release_ports(ours)
    assert read(RESERVED_PORTS) == "9990-10009,10500"


def test_restart_remembers() -> None:
    """After a restart the ports are still ours; others' reservations of meanwhile stay."""
    ours = reserve_ports(OURS)
    write(RESERVED_PORTS, read(RESERVED_PORTS) + ",20000")
    again = reserve_ports(OURS, ours)
    assert again == ours
    release_ports(again)
    assert read(RESERVED_PORTS) == "20000"


def test_another_range_replaces() -> None:
    """A run with another range gives the former one back."""
    ours = reserve_ports(OURS)
    other = reserve_ports(PortRange(10500, 11499), ours)
    assert read(RESERVED_PORTS) == "10500-11499"
    release_ports(other)
    assert read(RESERVED_PORTS) == ""


def test_many_ranges() -> None:
    """Lists longer than a page of the kernel survive."""
    write(RESERVED_PORTS, ",".join(str(port) for port in range(10001, 14000, 2)))
    before = read(RESERVED_PORTS)
    assert len(before) > 8192
    release_ports(reserve_ports(PortRange(20000, 20999)))
    assert read(RESERVED_PORTS) == before


def test_disjoint_range_is_accepted() -> None:
    """A range outside the node's own and the NodePorts is fine, even right beside them."""
    write(LOCAL_PORTS, "32768 60999")
    check_ports(PortRange(61000, 65535))
    check_ports(PortRange(29000, 29999))


def test_overlap_with_local_ports() -> None:
    """The error names the sysctl and the flag that settle it."""
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
    """Neither may NodePorts be used."""
    with pytest.raises(UsageError, match=f"NodePorts {node_ports}"):
        check_ports(ports, node_ports)


def test_node_ports_among_local_ports_must_be_reserved() -> None:
    """The error gives the command that does it, and keeps what others reserved."""
    write(LOCAL_PORTS, "20000 60999")
    write(RESERVED_PORTS, "8080")
    with pytest.raises(UsageError, match="NodePorts 30000-32767 overlap") as caught:
        check_ports(PortRange(10000, 19999))
    command = f"sysctl -w {RESERVED_PORTS}=8080,30000-32767"
    assert command in caught.value.hint
    write(RESERVED_PORTS, "8080,30000-32767")
    check_ports(PortRange(10000, 19999))


@pytest.mark.parametrize("ports", [PortRange(0, 10), PortRange(9, 8), PortRange(65000, 65536)])
def test_not_a_range(ports: PortRange) -> None:
    """Nonsense is refused before anything is compared."""
    with pytest.raises(UsageError, match="is not a range of ports"):
        check_ports(ports)


@pytest.mark.parametrize(("family", "name"), [(4, V4_FORWARDING), (6, V6_FORWARDING)])
def test_forwarding(family: int, name: str) -> None:
    """Whether the node forwards is read for each family."""
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
