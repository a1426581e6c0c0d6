"""The benchmarks run and report numbers that can be true; no claim about speed."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.devtools.bench.cluster import BenchCluster
from bpfsvc.devtools.bench.figures import PodLinks, Scale
from bpfsvc.devtools.bench.load.ports import PORTS
from bpfsvc.devtools.bench.load.tool import build
from bpfsvc.devtools.bench.progress import Progress
from bpfsvc.devtools.bench.results import Cell, Results
from bpfsvc.devtools.bench.run import Run, RunPlan
from bpfsvc.devtools.bench.testbeds.agents import cores
from bpfsvc.devtools.bench.testbeds.traffic import BACKEND, BACKEND_PORT, Tools, TrafficTestbed
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import stretched, wait

TINY = Scale(
    services=(3,),
    modes=("default", "direct", "nftables"),
    clients=(1,),
    rounds=2,
    slices=2,
    slice_seconds=0.02,
    warm_seconds=0.02,
    changes=3,
    baseline_changes=2,
    starts=1,
    origins=("API",),
)

HURRY = 300.0
"""Seconds: a limit with which a run does not wait for agents."""

KUBE_PROXY = """\
#!/bin/sh
# An agent, with as many of kube-proxy's flags as it needs.
for word; do
	case $word in --kubeconfig=*|--hostname-override=*|--cluster-cidr=*) set -- "$@" $word;; esac
	shift
done
pins=$(mktemp -d {pins}/kube-proxy-XXXXXX)
exec {python} -m bpfsvc run --pin-root $pins --cgroup-root none --cache {cache} --last-good "" "$@"
"""


def measured(*suites: str, scale: Scale = TINY, kube_proxy: Path | None = None) -> Results:
    with Run(RunPlan(suites=suites, scale=scale, kube_proxy=kube_proxy)) as run:
        return run.take_steps(Progress(run.seconds, stream=io.StringIO()))


def one(results: Results, **wanted: object) -> Cell:
    """Return the only cell of that kind."""
    (cell,) = results.find(**wanted)
    return cell


@pytest.mark.slow
def test_traffic_of_pods_takes_every_mode_in_turn() -> None:
    """Each kind and mode has a rate and a cost a round, and a ratio to direct of the same round."""
    results = measured("pods", scale=replace(TINY, services=(1,), clients=(1, 3)))
    assert results.notes == []
    kinds = ("connect", "request", "bulk", "datagrams", "questions")
    ways = [*((kind, "pod") for kind in kinds), ("connect", "node")]
    assert {(cell.kind, cell.where) for cell in results.find(suite="pods")} == set(ways)
    for kind, where in ways:
        for clients in (1, 3):
            cells = results.find(suite="pods", kind=kind, where=where, clients=clients)
            assert [cell.mode for cell in cells] == ["default", "direct", "nftables"]
            for cell in cells:
                assert cell.services == 1
                assert len(cell.values) == len(cell.cpu) == TINY.rounds
                assert min(cell.values) > 0
                assert all(0 < cost < 1e5 for cost in cell.cpu)
                expected = tuple(
                    here / there for here, there in zip(cell.values, cells[1].values, strict=True)
                )
                assert cell.ratios == (() if cell.mode == "direct" else expected)
                agents = results.find(suite="agents", kind=kind, where=where, mode=cell.mode)
                watched = cell.mode == "default" and kind in ("connect", "questions")
                assert [agent.clients for agent in agents] == ([1] if watched else [])
                # How much it is, is noise in a run this short; tests/bench/test_turns.py has sums.
                assert all(min(cell.cpu) > agent.median >= 0 for agent in agents)
                if kind != "bulk":
                    assert 0 < cell.latency["50"] <= cell.latency["99"] < 1e6
                    assert sum(count for _, count in cell.histogram) > 0


@pytest.mark.slow
def test_node_ports_are_measured_from_outside_with_and_without_xdp() -> None:
    """On a node with the backend, and on one without."""
    scale = replace(TINY, modes=("direct", "xdp"), kinds=("connect", "datagrams"), limit=HURRY)
    results = measured("edge", scale=scale)
    assert results.notes == []
    cases = {(cell.kind, cell.where, cell.mode) for cell in results.find(suite="edge")}
    assert cases == {
        (kind, where, mode)
        for kind in scale.kinds
        for where in ("remote", "local")
        for mode in ("direct", "xdp")
    }


@pytest.fixture
def kube_proxy(tmp_path: Path) -> Iterator[Path]:
    """A script that runs an agent instead and understands kube-proxy's flags."""
    binary = tmp_path / "kube-proxy"
    words = {"pins": sandbox.BPF_ROOT, "python": sys.executable, "cache": sandbox.ROOT / "cache"}
    binary.write_text(KUBE_PROXY.format(**words))
    binary.chmod(0o755)
    yield binary
    for left in sandbox.BPF_ROOT.glob("kube-proxy-*"):
        shutil.rmtree(left)


@pytest.mark.slow
def test_kube_proxy_itself_is_measured_if_its_binary_is_given(kube_proxy: Path) -> None:
    scale = replace(TINY, modes=("kube-proxy-nftables",), kinds=("request",))
    results = measured("pods", scale=scale, kube_proxy=kube_proxy)
    assert results.notes == []
    assert [cell.mode for cell in results.find(suite="pods")] == [
        "direct",
        "kube-proxy-nftables",
    ]


@contextmanager
def set_up(
    mode: str,
    kube_proxy: Path | None = None,
    *,
    pin: bool = True,
    pods: PodLinks = "routed",
    policies: bool = False,
) -> Iterator[TrafficTestbed]:
    """Set a mode up for one Service."""
    directory = sandbox.ROOT / "cluster"
    directory.mkdir()
    cluster = BenchCluster(1, directory, BACKEND, BACKEND_PORT)
    tools = Tools(
        load=build(sandbox.ROOT),
        limit=60,
        kube_proxy=kube_proxy,
        pods=pods,
        pin=pin,
        policies=policies,
    )
    try:
        with TrafficTestbed(mode, cluster, tools) as testbed:
            yield testbed
    finally:
        shutil.rmtree(directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "named"),
    [("default", ["import run"]), ("kube-proxy-nftables", ["bpfsvc\0run", "lab.apiserver"])],
    ids=["default", "kube-proxy-nftables"],
)
def test_agents_and_kube_proxy_stay_off_the_measured_core(
    mode: str, named: list[str], kube_proxy: Path
) -> None:
    """Every thread of agents, of kube-proxy and of its API server; the load is there alone."""
    core, _ = cores()
    earlier = set(_children())
    with set_up(mode, kube_proxy) as testbed:
        assert testbed.run("request", "pod", 1, 0.02)[0].operations > 0
        assert _affinities("/load\0", earlier) == {(core,)}
        for name in named:
            kept = _affinities(name, earlier)
            assert not [cores for cores in kept if core in cores], _children()


def test_an_unpinned_load_may_run_anywhere() -> None:
    earlier = set(_children())
    with set_up("direct", pin=False) as testbed:
        outcome, cpu = testbed.run("connect", "pod", 1, stretched(0.1))
        assert outcome.operations > 0
        assert cpu > outcome.cpu_seconds > 0
        assert _affinities("/load\0", earlier) == {tuple(sorted(os.sched_getaffinity(0)))}


def _children() -> dict[int, str]:
    """Return the command lines of our processes."""
    lists = Path("/proc/self/task").glob("*/children")
    numbers = [int(number) for children in lists for number in children.read_text().split()]
    lines = {}
    for number in numbers:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            lines[number] = Path(f"/proc/{number}/cmdline").read_text()
    return lines


def _affinities(name: str, earlier: Collection[int]) -> set[tuple[int, ...]]:
    """Return where threads of our processes may run that have such words in their line.

    ``earlier``: processes of other tests, which are left out.
    """
    affinities = set()
    for process, line in _children().items():
        if name in line and process not in earlier:
            threads = [int(thread.name) for thread in Path(f"/proc/{process}/task").iterdir()]
            affinities |= {tuple(sorted(os.sched_getaffinity(thread))) for thread in threads}
    assert affinities
    return affinities


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "direct"])
def test_pods_may_be_on_a_bridge_and_the_fast_path_leads_into_them(mode: str) -> None:
    with set_up(mode, pods="bridge") as testbed:
        outcome, _ = testbed.run("request", "pod", 1, 0.02)
        assert outcome.operations > 0
        ports = json.loads(testbed.near.run(["bridge", "-j", "link", "show"]).stdout)
        assert {port.get("master") for port in ports} == {"cni0"}
        assert testbed.refusals() == []


def _all_refuse(testbed: TrafficTestbed, reason: str) -> bool:
    """True if both agents say this reason why not all connections are fast."""
    refusals = testbed.refusals()
    return len(refusals) == 2 and all(reason in refusal for refusal in refusals)


@pytest.mark.slow
def test_on_nodes_with_policies_the_fast_path_is_for_established_connections() -> None:
    with set_up("default", policies=True) as testbed:
        outcome, _ = testbed.run("connect", "pod", 1, stretched(0.1))
        assert outcome.operations > 0
        wait(lambda: _all_refuse(testbed, "in inet bench_policies forward"), "the rules are seen")
        rules = testbed.near.run(["nft", "list", "table", "inet", "bench_policies"]).stdout
        assert "ct state established,related accept" in rules


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["iptables", "default", "stack-tc"])
def test_every_request_is_a_first_packet(mode: str) -> None:
    """By the counter of the rule that translates, or of the backend; ports come again meanwhile.

    While other tests compute, an agent takes longer to remove old flows than the load allows for.
    """
    with set_up(mode) as testbed:
        asked, waits = 0, 0
        for clients in itertools.cycle((1, 4, 16)):
            outcome, _ = testbed.run("questions", "pod", clients, 0.06)
            asked += outcome.operations + outcome.errors
            if asked > 2 * PORTS:
                break
            if asked // (PORTS // 2) > waits:
                waits += 1
                wait(lambda: _knows_no_flow(testbed), "the flows until now are forgotten", 20)
        assert 0.99 * asked <= _translated(testbed) <= asked


def _knows_no_flow(testbed: TrafficTestbed) -> bool:
    """Return True if no agent of the node knows a UDP flow; netfilter looks at the clock itself."""
    if testbed.mode.startswith("iptables"):
        return True
    rows = _dump(testbed.near, "connections")
    return not any(row["protocol"] == "UDP" for row in rows)


def _dump(node: LabNode, table: str) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "bpfsvc", "maps", "dump", "--output", "json", table]
    dump = node.run([*words, "--pin-root", node.pin_root], cwd=Path(__file__).parents[2]).stdout
    rows: list[dict[str, Any]] = json.loads(dump)[table]
    return rows


def _translated(testbed: TrafficTestbed) -> int:
    """Return how many UDP flows the node has sent to the backend."""
    node = testbed.near
    if testbed.mode.startswith("iptables"):
        tool = "iptables-nft" if testbed.mode == "iptables-nft" else "iptables-legacy"
        rules = node.run([tool, "-t", "nat", "-L", "-v", "-x", "-n"]).stdout.splitlines()
        to = f"udp to:{BACKEND}:{BACKEND_PORT}"
        (rule,) = (rule for rule in rules if rule.endswith(to))
        return int(rule.split()[0])
    rows = _dump(node, "backends")
    return sum(row["connections"] for row in rows if row["service"].endswith(":udp"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["no-service", "no-service-stack"])
def test_traffic_to_no_service_is_untranslated_on_nodes_with_agents(mode: str) -> None:
    """The backend's pod answers itself, at a port that no Service names."""
    with set_up(mode) as testbed:
        outcome, _ = testbed.run("connect", "pod", 1, stretched(0.1))
        assert outcome.operations > 0
        assert testbed.memory()["agent, RSS"]
        assert _connections(testbed) == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "tc", "stack", "stack-tc", "xdp"])
def test_every_mode_of_bpfsvc_translates(mode: str) -> None:
    """From a pod, or from outside where pods make no difference; the backend's counter says so."""
    with set_up(mode) as testbed:
        where = "remote" if mode == "xdp" else "pod"
        outcome, _ = testbed.run("connect", where, 1, 0.02)
        assert outcome.operations > 0
        assert _connections(testbed) >= outcome.operations
        # Only where the fast path may be used can there be a reason why it is not.
        assert not (testbed.refusals() and "stack" in mode)


@pytest.mark.slow
def test_a_reason_of_the_start_that_is_gone_is_no_reason_any_more() -> None:
    """Netfilter begins to track connections after the first look of the first agent."""
    with set_up("established") as testbed:
        wait(lambda: testbed.refusals() == [], "both agents use the fast path", 20)


def _connections(testbed: TrafficTestbed) -> int:
    """Return how many connections and flows the near node has sent to backends."""
    return sum(row["connections"] for row in _dump(testbed.near, "backends"))


def test_a_mode_that_fails_becomes_a_note_and_others_continue() -> None:
    """A baseline that is too slow is not tried again."""
    scale = replace(TINY, services=(2, 3), kinds=("request",), baseline_limit=1e-6)
    results = measured("pods", scale=replace(scale, modes=("direct", "nftables")))
    assert [cell.mode for cell in results.find(suite="pods")] == ["direct", "direct"]
    slow, not_tried = results.notes
    assert "not programmed within" in slow
    assert "not tried" in not_tried


@pytest.mark.slow
def test_change_sees_the_new_backend_after_every_change(kube_proxy: Path) -> None:
    """As many times as there were changes, none of them before its change."""
    modes = ("default", "nftables", "kube-proxy-nftables")
    scale = replace(TINY, services=(1,), origins=("API", "json"), modes=modes)
    results = measured("change", scale=scale, kube_proxy=kube_proxy)
    assert results.notes == []
    assert [(cell.mode, cell.where, len(cell.values)) for cell in results.cells] == [
        ("default", "API", TINY.changes),
        ("default", "json", TINY.changes),
        ("kube-proxy-nftables", "API", TINY.baseline_changes),
    ]
    for cell in results.cells:
        assert (cell.kind, cell.unit, cell.services) == ("change", "ms", 1)
        assert all(0 < value < 60_000 for value in cell.values)


@pytest.mark.slow
def test_start_measures_time_and_memory_of_the_agent() -> None:
    """Cold, from an image, after a boot and warm; both processes use some memory."""
    results = measured("start", scale=replace(TINY, origins=("yaml",)))
    times = results.find(suite="start", where="yaml", unit="s")
    first_starts = ("cold", "first of an image", "after a boot")
    assert {cell.kind for cell in times} == {
        *(f"until the first packet, {start}" for start in first_starts),
        *(
            f"{until} healthy, {start}"
            for until in ("until", "of CPU until")
            for start in (*first_starts, "warm")
        ),
    }
    assert all(0 < cell.median < 60 for cell in times)
    weights = results.find(suite="memory")
    assert {"compiler, largest", "agent, largest", "agent, rss after a warm start"} <= {
        cell.kind for cell in weights
    }
    assert all(5 < cell.median < 1000 for cell in weights)
