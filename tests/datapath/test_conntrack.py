"""netfilter's sysctls: which values are set, and when none is."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfsvc.config.config import Conntrack
from bpfsvc.datapath.conntrack import ConntrackResult, ConntrackUse, apply, processors, use
from tests.config.settings import conntrack

PRESENT = {
    "nf_conntrack_max": 262144,
    "nf_conntrack_tcp_timeout_established": 432000,
    "nf_conntrack_tcp_timeout_close_wait": 60,
    "nf_conntrack_tcp_be_liberal": 0,
    "nf_conntrack_udp_timeout": 30,
    "nf_conntrack_udp_timeout_stream": 120,
}


class Machine:
    """A directory tree like ``/proc`` and ``/sys`` of a machine."""

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


def test_how_full_the_table_is_is_read(machine: Machine) -> None:
    (machine.sysctls / "nf_conntrack_count").write_text("17\n")
    assert use(machine.root) == ConntrackUse(entries=17, limit=262144)


def test_without_connection_tracking_there_is_no_table(tmp_path: Path) -> None:
    assert use(tmp_path) is None


def wanted_set(wanted: Conntrack, root: Path) -> ConntrackResult | None:
    return apply(wanted.values(processors(root)), root)


def test_only_different_values_are_set_and_reported(machine: Machine) -> None:
    (machine.sysctls / "nf_conntrack_tcp_timeout_established").write_text("86400\n")
    assert wanted_set(conntrack(), machine.root) == ConntrackResult(
        changed=("nf_conntrack_max=131072", "nf_conntrack_tcp_timeout_close_wait=3600")
    )
    assert machine.values() == {
        **PRESENT,
        "nf_conntrack_max": 131072,
        "nf_conntrack_tcp_timeout_established": 86400,
        "nf_conntrack_tcp_timeout_close_wait": 3600,
    }
    assert wanted_set(conntrack(), machine.root) == ConntrackResult()


def test_the_hash_table_grows_with_the_limit(machine: Machine) -> None:
    wanted = wanted_set(conntrack(min=400000), machine.root)
    assert wanted is not None
    assert "hashsize=100000" in wanted.changed
    assert machine.hash_size.read_text() == "100000\n"


def test_the_hash_table_never_shrinks(machine: Machine) -> None:
    wanted_set(conntrack(), machine.root)
    assert machine.hash_size.read_text() == "65536\n"


def test_a_kernel_without_connection_tracking_is_left_alone(tmp_path: Path) -> None:
    assert wanted_set(conntrack(), tmp_path) is None
    assert [*tmp_path.iterdir()] == []


def test_a_kernel_with_built_in_conntrack_without_parameters_is_supported(machine: Machine) -> None:
    machine.hash_size.unlink()
    wanted = wanted_set(conntrack(min=400000), machine.root)
    assert wanted is not None
    assert wanted.refused == ()


def test_values_that_cannot_be_set_are_reported_and_the_others_are_set(machine: Machine) -> None:
    stream = machine.sysctls / "nf_conntrack_udp_timeout_stream"
    stream.unlink()
    wanted = wanted_set(conntrack(udp_stream=7), machine.root)
    assert wanted is not None
    assert wanted.refused == ("nf_conntrack_udp_timeout_stream=7 (No such file or directory)",)
    assert len(wanted.changed) == 3


def test_values_that_only_the_first_namespace_may_set_are_no_error(machine: Machine) -> None:
    (machine.sysctls / "nf_conntrack_max").chmod(0o444)
    wanted = wanted_set(conntrack(min=400000), machine.root)
    assert wanted is not None
    assert wanted.elsewhere == ("nf_conntrack_max=400000",)
    assert wanted.refused == ()
    assert machine.values()["nf_conntrack_max"] == PRESENT["nf_conntrack_max"]
    assert machine.hash_size.read_text() == "65536\n"


def test_all_cores_of_the_machine_count_not_only_those_of_this_process(
    machine: Machine,
) -> None:
    assert processors(machine.root) == 4


def test_without_a_topology_there_is_one_processor_at_least(tmp_path: Path) -> None:
    assert processors(tmp_path) >= 1
