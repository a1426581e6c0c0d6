"""netfilter's sysctls: what they are set to, and when they are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfsvc.datapath.conntrack import Conntrack, Outcome, apply, processors

PRESENT = {
    "nf_conntrack_max": 262144,
    "nf_conntrack_tcp_timeout_established": 432000,
    "nf_conntrack_tcp_timeout_close_wait": 60,
    "nf_conntrack_tcp_be_liberal": 0,
    "nf_conntrack_udp_timeout": 30,
    "nf_conntrack_udp_timeout_stream": 120,
}


class Machine:
    """A tree that looks like ``/proc`` and ``/sys`` of a machine."""

    def __init__(self, root: Path, cores: int = 4) -> None:
        self.root = root
        self.sysctls = root / "proc/sys/net/netfilter"
        self.sysctls.mkdir(parents=True)
        for name, value in PRESENT.items():
            (self.sysctls / name).write_text(f"{value}\n")
        self.hash_size = root / "sys/module/nf_conntrack/parameters/hashsize"
        self.hash_size.parent.mkdir(parents=True)
        self.hash_size.write_text("65536\n")
        for number in range(cores):
            (root / f"sys/devices/system/cpu/cpu{number}/topology").mkdir(parents=True)
        for name in ("cpufreq", "cpuidle", "cpu99"):
            (root / "sys/devices/system/cpu" / name).mkdir()

    def values(self) -> dict[str, int]:
        return {path.name: int(path.read_text()) for path in self.sysctls.iterdir()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


LIMITS = {
    "so many for each processor": (Conntrack(), 8, 262144),
    "at least the least": (Conntrack(), 1, 131072),
    "no more than a million on account of processors": (Conntrack(), 64, 1048576),
    "a million exactly": (Conntrack(), 32, 1048576),
    "none for each processor leaves it": (Conntrack(max_per_core=0), 64, 0),
    "the least may be above a million": (Conntrack(min=1 << 21), 8, 1 << 21),
    "no least": (Conntrack(min=0, max_per_core=10), 2, 20),
}


@pytest.mark.parametrize(("wanted", "cores", "expected"), LIMITS.values(), ids=LIMITS.keys())
def test_the_limit_follows_the_number_of_processors(
    wanted: Conntrack, cores: int, expected: int
) -> None:
    assert wanted.limit(cores) == expected
    assert wanted.values(cores).get("nf_conntrack_max", 0) == expected


def test_what_is_zero_is_left_alone() -> None:
    assert Conntrack(max_per_core=0, tcp_established=0, tcp_close_wait=0).values(4) == {}


def test_everything_that_is_given_is_wanted() -> None:
    wanted = Conntrack(tcp_be_liberal=True, udp=5, udp_stream=6)
    assert wanted.values(8) == {
        "nf_conntrack_max": 262144,
        "nf_conntrack_tcp_timeout_established": 86400,
        "nf_conntrack_tcp_timeout_close_wait": 3600,
        "nf_conntrack_tcp_be_liberal": 1,
        "nf_conntrack_udp_timeout": 5,
        "nf_conntrack_udp_timeout_stream": 6,
    }


def test_only_what_differs_is_set_and_told(machine: Machine) -> None:
    (machine.sysctls / "nf_conntrack_tcp_timeout_established").write_text("86400\n")
    assert apply(Conntrack(), machine.root) == Outcome(
        changed=("nf_conntrack_max=131072", "nf_conntrack_tcp_timeout_close_wait=3600")
    )
    assert machine.values() == {
        **PRESENT,
        "nf_conntrack_max": 131072,
        "nf_conntrack_tcp_timeout_established": 86400,
        "nf_conntrack_tcp_timeout_close_wait": 3600,
    }
    assert apply(Conntrack(), machine.root) == Outcome()


def test_the_hash_table_grows_with_the_limit(machine: Machine) -> None:
    found = apply(Conntrack(min=400000), machine.root)
    assert found is not None
    assert "hashsize=100000" in found.changed
    assert machine.hash_size.read_text() == "100000\n"


def test_the_hash_table_never_shrinks(machine: Machine) -> None:
    apply(Conntrack(), machine.root)
    assert machine.hash_size.read_text() == "65536\n"


def test_a_kernel_without_connection_tracking_is_left_alone(tmp_path: Path) -> None:
    assert apply(Conntrack(), tmp_path) is None
    assert [*tmp_path.iterdir()] == []


def test_a_kernel_that_has_it_built_in_without_parameters_is_served(machine: Machine) -> None:
    machine.hash_size.unlink()
    found = apply(Conntrack(min=400000), machine.root)
    assert found is not None
    assert found.refused == ()


def test_what_cannot_be_set_is_told_and_the_rest_is_set(machine: Machine) -> None:
    stream = machine.sysctls / "nf_conntrack_udp_timeout_stream"
    stream.unlink()
    found = apply(Conntrack(udp_stream=7), machine.root)
    assert found is not None
    assert found.refused == ("nf_conntrack_udp_timeout_stream=7 (No such file or directory)",)
    assert len(found.changed) == 3


def test_what_only_the_first_namespace_may_set_is_no_fault(machine: Machine) -> None:
    (machine.sysctls / "nf_conntrack_max").chmod(0o444)
    found = apply(Conntrack(min=400000), machine.root)
    assert found is not None
    assert found.elsewhere == ("nf_conntrack_max=400000",)
    assert found.refused == ()
    assert machine.values()["nf_conntrack_max"] == PRESENT["nf_conntrack_max"]
    assert machine.hash_size.read_text() == "65536\n"


def test_processors_are_counted_by_the_machine_and_not_by_what_this_process_may_use(
    machine: Machine,
) -> None:
    assert processors(machine.root) == 4


def test_without_a_topology_there_is_one_processor_at_least(tmp_path: Path) -> None:
    assert processors(tmp_path) >= 1
