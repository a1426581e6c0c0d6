"""The commands of docs/migration.md are found, and run on every node where they are for each."""

from __future__ import annotations

import filecmp
import subprocess
from pathlib import Path

import pytest

from tests.cluster.migration.document import (
    DOCUMENT,
    Step,
    copy_of_deploy,
    for_nodes,
    function,
    steps,
)
from tests.cluster.settings import CHECKOUT

TEXT = DOCUMENT.read_text()
STEPS = steps(TEXT)

_EXAMPLE = """# Title
## There

**1. Look.** Words:

```
one
two
```

Words, **2. not a step**.

**2. Do.**

```
three
```

```
four
```

## Back

**1. Nothing.**

## Rest

```
five
```
"""


def test_the_blocks_of_each_step_in_their_order() -> None:
    assert steps(_EXAMPLE) == {
        ("There", 1): ["one\ntwo\n"],
        ("There", 2): ["three\n", "four\n"],
        ("Back", 1): [],
    }


@pytest.mark.parametrize(
    ("step", "block", "words"),
    [
        (("There", 1), 0, "node NAME doctor"),
        (("There", 2), 0, "kubectl apply -k deploy/overlays/kubeadm"),
        (("There", 2), 1, "node NAME verify"),
        (("There", 3), 0, '"kube-proxy":"off"'),
        (("There", 3), 1, '"remove"'),
        (("There", 4), 0, "node NAME cleanup --kube-proxy --yes"),
        (("There", 4), 1, "node NAME cleanup --kube-proxy --release"),
        (("There", 5), 0, "delete daemonset kube-proxy"),
        (("Back", 1), 0, "rollout status daemonset/kube-proxy"),
        (("Back", 2), 0, "kubectl delete -k deploy/overlays/kubeadm"),
        (("Back", 3), 0, "kubectl apply -k deploy/removal"),
        (("Back", 4), 0, "kubectl delete -k deploy/removal"),
    ],
)
def test_the_suite_finds_what_it_runs(step: Step, block: int, words: str) -> None:
    assert words in STEPS[step][block]


def test_no_block_of_the_document_is_left_out() -> None:
    blocks = sum(map(len, STEPS.values()))
    assert blocks == 12
    assert TEXT.count("\n```\n") == 2 * (blocks + 1)  # and the function


def test_all_of_it_is_what_a_shell_reads() -> None:
    for blocks in STEPS.values():
        script = "\n".join([function(TEXT), *blocks])
        subprocess.run(["bash", "-nc", script], check=True)


def test_a_command_for_a_node_is_written_for_each() -> None:
    block = "node NAME doctor --x\nkubectl get NAME\n"
    assert for_nodes(block, ["n1", "n2"]).splitlines() == [
        "node n1 doctor --x",
        "node n2 doctor --x",
        "kubectl get NAME",
    ]


@pytest.mark.parametrize(
    ("hybrid", "changed"), [(True, {"base/daemonset.yaml", "node/pod.yaml"}), (False, set())]
)
def test_only_the_path_of_the_cgroups_is_changed(
    hybrid: bool, changed: set[str], tmp_path: Path
) -> None:
    copy_of_deploy(tmp_path, hybrid=hybrid)
    original = CHECKOUT / "deploy"
    files = [str(file.relative_to(original)) for file in original.rglob("*.yaml")]
    different = {
        name
        for name in files
        if not filecmp.cmp(original / name, tmp_path / "deploy" / name, shallow=False)
    }
    assert different == changed
