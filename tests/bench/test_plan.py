"""What a run of the benchmark measures, and on which cluster."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bpfsvc.devtools.bench import baselines
from bpfsvc.devtools.bench.cluster import MEASURED, NODE_PORT, PORT, BenchCluster
from bpfsvc.devtools.bench.figures import QUICK, SHORT, SUITES, Scale
from bpfsvc.devtools.bench.modes import MODES
from bpfsvc.devtools.bench.results import Results
from bpfsvc.devtools.bench.run import possible
from bpfsvc.devtools.bench.steps import Context
from bpfsvc.devtools.bench.suites import traffic
from bpfsvc.devtools.bench.suites.setup_times import setup_seconds
from bpfsvc.devtools.bench.suites.traffic import KINDS, takes_part
from bpfsvc.devtools.bench.suites.turns import Task
from bpfsvc.devtools.bench.testbeds.agents import last_refusal
from bpfsvc.devtools.bench.testbeds.traffic import Tools


def test_the_default_run_measures_a_part_of_everything() -> None:
    assert set(SHORT) < set(SUITES)
    assert tuple(SUITES[:2]) == traffic.SUITES
    assert set(QUICK.services) <= set(Scale().services)
    assert set(QUICK.kinds) <= set(KINDS["pods"])
    assert set(QUICK.without) <= set(MODES)
    assert QUICK.limit < 180


def test_a_cluster_of_one_service_is_the_measured_one(tmp_path: Path) -> None:
    cluster = BenchCluster(1, tmp_path, "10.244.2.11", 9000)
    files = sorted(file.name for file in cluster.manifests().iterdir())
    assert files == ["measured-slice.json", "measured.json"]
    tcp, udp = cluster.ports
    assert (tcp.protocol, udp.protocol) == ("tcp", "udp")
    for port in (tcp, udp):
        assert (port.address, port.port, port.node_port) == (MEASURED, PORT, NODE_PORT)
        assert port.backends == (("10.244.2.11", 9000),)


def test_the_measured_service_is_in_the_middle_of_the_rules(tmp_path: Path) -> None:
    cluster = BenchCluster(101, tmp_path, "10.244.2.11", 9000)
    rules = cluster.ports
    assert len(rules) == 102
    assert [rule.address for rule in rules].index(MEASURED) == 50
    assert all(len(rule.backends) == 4 for rule in rules if rule.address != MEASURED)
    assert len({(rule.name, rule.protocol) for rule in rules}) == 102
    assert len(list(cluster.manifests().iterdir())) == 202


def test_direct_is_always_measured_and_what_cannot_be_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    obstacles = {"iptables": "", "iptables-nft": "", "nftables": "", "ipvs": "no such kernel"}
    monkeypatch.setattr(baselines, "obstacles", lambda: obstacles)
    modes, notes = possible(["tc", "ipvs", "kube-proxy-iptables"], ())
    assert modes == ["direct", "tc"]
    assert notes == [
        "kube-proxy-iptables was not measured: no kube-proxy in PATH, nor by --kube-proxy",
        "ipvs was not measured: no such kernel",
    ]
    everything, notes = possible([], ("nftables", "iptables", "ipvs"))
    assert everything == [mode for mode in MODES if "ipvs" not in mode]
    assert len(notes) == 2
    assert "iptables-nft" not in possible([], (), QUICK.without)[0]
    assert "iptables-nft" in possible(["iptables-nft"], (), QUICK.without)[0]
    assert not [mode for mode in possible([], ())[0] if mode.startswith("kube-proxy")]


def test_a_mode_is_measured_where_it_differs_from_others() -> None:
    """Neither XDP with pods, nor sockets' modes from outside or where only sockets are served."""
    packets_or_no_service = {"tc", "stack-tc", "observed-tc", "no-service", "no-service-stack"}
    for where, suite, out in (
        ("pod", "pods", {"xdp"}),
        ("node", "pods", {"xdp", "established", *packets_or_no_service}),
        ("remote", "edge", {"established", *packets_or_no_service}),
    ):
        assert {mode for mode in MODES if not takes_part(mode, suite, where)} == out


def test_recorded_rules_are_not_measured_beside_the_kube_proxy_that_writes_them() -> None:
    """Unless modes are named."""
    modes = ("direct", "kube-proxy-nftables", "nftables", "iptables-nft")

    def named(*wanted: str) -> set[str]:
        scale = Scale(services=(1,), modes=wanted)
        tools = Tools(load=Path("load"), limit=60)
        with ExitStack() as stack:
            steps = traffic.steps(Context(scale, modes, Results()), ("pods",), tools, stack)
            texts = [step.about for step in steps]
        names = (text.partition("setting ")[2].removesuffix(" up") for text in texts)
        return {*filter(None, names)}

    assert named() == {"direct", "kube-proxy-nftables", "iptables-nft"}
    assert named(*modes) == {*modes}


@pytest.mark.parametrize(
    ("log", "refusal"),
    [
        ("INFO the fast path is used\nINFO ready: 1\n", ""),
        ("INFO the fast path is not used: a rule\nINFO ready: 1\n", "a rule"),
        ("INFO the fast path is not used: a rule\nINFO the fast path is used in\n", ""),
        (
            "INFO the fast path is used\n"
            "INFO the fast path is used in the middle of connections only: a rule\nINFO ready: 1\n",
            "a rule",
        ),
    ],
)
def test_what_an_agent_said_last_of_the_fast_path_counts(log: str, refusal: str) -> None:
    assert last_refusal(log) == refusal


def test_refusals_are_asked_after_each_measurement_and_noted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results, reasons = Results(), iter([[], ["not used"], ["not used"]])
    context = SimpleNamespace(results=results, scale=None)
    testbeds = [
        SimpleNamespace(mode="direct", refusals=list),
        SimpleNamespace(mode="established", refusals=lambda: next(reasons)),
    ]
    args: Any = (context, 1, None, None, testbeds)
    size = traffic._Size(*args)
    monkeypatch.setattr(traffic, "measure", lambda *_: None)
    for notes in ([], ["1 Service, established: not used"], ["1 Service, established: not used"]):
        size._measure(Task("pods", "connect", "pod", 1), lambda _: None)
        assert results.notes == notes


def test_a_baseline_that_will_be_too_slow_is_planned_for_no_longer_than_its_limit() -> None:
    assert setup_seconds("iptables-nft", 100_000, limit=10.0) == pytest.approx(10.6)
    assert setup_seconds("direct", 10_000) < setup_seconds("iptables", 10_000)
