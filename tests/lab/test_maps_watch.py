"""``bpfsvc maps dump --service`` and ``--watch`` on the maps of a running agent."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.devtools.lab.cluster import COMMAND, LabCluster
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.topology import Lab
from tests.lab.testbed import FAMILIES, ONE, WEB, objects

pytestmark = pytest.mark.slow

NAME = f"default/{WEB.name}"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A node with two pods, which nobody asks."""
    with Lab("routed", nodes=1) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(lab: Lab) -> Iterator[LabCluster]:
    with LabCluster(lab) as made:
        made.put("other", *objects(ONE[0], [lab.pods[1]]))
        made.start(lab.nodes[0])
        yield made


class Watch:
    """A running ``bpfsvc maps dump --watch``, and what it has printed."""

    def __init__(self, cluster: LabCluster, output: Path, *words: str) -> None:
        """``output``: the file that it writes to."""
        node = cluster.lab.nodes[0]
        self._output, self._read = output, 0
        with output.open("wb") as file:
            self._process = node.popen(
                [*COMMAND, "maps", "dump", "--watch", *words, "--pin-root", str(node.pin_root)],
                stdout=file,
                stderr=file,
            )
        state = Path(f"/proc/{self._process.pid}/wchan")
        wait(lambda: "nanosleep" in state.read_text(), "it waits after its first look", 30)

    def changes(self, kind: str, number: int) -> list[dict[str, Any]]:
        """Wait for so many lines more; all must be of one kind."""
        wait(lambda: len(self._rest()) >= number, f"{number} lines: {kind}")
        lines = [json.loads(line) for line in self._rest()]
        assert {line["change"] for line in lines} == {kind}, lines
        self._read += len(lines)
        return lines

    def end(self) -> None:
        """End it as Ctrl-C does; assert that it has printed nothing since."""
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(timeout=stretched(10)) == 0
        assert self._rest() == []

    def _rest(self) -> list[str]:
        whole = self._output.read_text().rpartition("\n")[0]
        return whole.splitlines()[self._read :]


def rows(changes: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [change["row"] for change in changes if change["map"] == name]


def dumped(cluster: LabCluster, *words: str) -> dict[str, list[dict[str, Any]]]:
    done = cluster.command(cluster.lab.nodes[0], "maps", "dump", "-o", "json", *words)
    assert done.returncode == 0, done.stderr
    maps: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return maps


def backends(lab: Lab, *numbers: int) -> set[str]:
    """Return the backends for TCP of these pods."""
    addresses = (lab.pods[number].address(family) for number in numbers for family in FAMILIES)
    return {f"[{address}]:8080" if ":" in address else f"{address}:8080" for address in addresses}


def test_the_rows_of_a_service_are_shown_alone(lab: Lab, cluster: LabCluster) -> None:
    cluster.apply("web", *objects(WEB, lab.pods))
    maps = dumped(cluster, "--service", f"{NAME}:web")
    assert {row["service"] for row in maps["frontends"]} == {f"{NAME}:web"}
    vips = {f"{WEB.vip(4)}:80/TCP", f"[{WEB.vip(6)}]:80/TCP"}
    assert vips <= {row["frontend"] for row in maps["frontends"]}
    assert {row["backend"] for row in maps["backends"]} == backends(lab, 0, 1)
    every = {row["service"] for row in dumped(cluster, "frontends")["frontends"]}
    assert f"default/{ONE[0].name}:web" in every
    cluster.drop("web")
    cluster.settle()
    gone = cluster.command(lab.nodes[0], "maps", "dump", "--service", NAME)
    assert gone.returncode == 1
    assert gone.stderr.startswith(f"Error: the kernel holds no Service {NAME}\n")


@pytest.mark.parametrize("name", ["frontends", "backends"])
def test_what_comes_changes_and_goes_is_shown_while_an_agent_writes_it(
    lab: Lab, cluster: LabCluster, name: str, tmp_path: Path
) -> None:
    """Of this Service alone: another one changes meanwhile."""
    port = f"{NAME}:web"
    watch = Watch(cluster, tmp_path / "changes", "--service", port, "-o", "json", name)
    cluster.apply("web", *objects(WEB, [lab.pods[0]]))
    wanted = dumped(cluster, "--service", port, name)[name]
    assert wanted
    assert rows(watch.changes("added", len(wanted)), name) == wanted
    cluster.put("other", *objects(ONE[0], lab.pods))
    if name == "frontends":
        refusals = [row for row in wanted if not row["backends"]]
        cluster.apply("web", *objects(WEB, lab.pods))
        changed = watch.changes("changed", len(wanted) - len(refusals))
        for change in changed:
            assert set(change["before"]) == {"backends"}
            assert set(change["before"]["backends"]) < set(change["row"]["backends"])
        shown = {backend for row in rows(changed, name) for backend in row["backends"]}
        assert shown == backends(lab, 0, 1)
        wanted = refusals + rows(changed, name)
    cluster.drop("web")
    removed = rows(watch.changes("removed", len(wanted)), name)
    assert sorted(removed, key=str) == sorted(wanted, key=str)
    cluster.apply("other", *objects(ONE[0], [lab.pods[1]]))
    watch.end()
