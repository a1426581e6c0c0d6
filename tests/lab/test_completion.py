"""What bash offers after TAB on a node: the names that its maps have now."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bpfsvc
from bpfsvc.devtools.lab.patience import stretched
from tests.lab.testbed import EMPTY, WEB, Testbed, built_testbed, objects

pytestmark = pytest.mark.slow

SCRIPT = Path(bpfsvc.__file__).parent / "share/completion/bash/bpfsvc"


@pytest.fixture(scope="module")
def node() -> Iterator[Testbed]:
    """A node with two Services."""
    with built_testbed(layout="routed", nodes=1) as made:
        made.cluster.put("web", *objects(WEB, made.lab.pods))
        made.cluster.put("empty", *objects(EMPTY, []))
        made.cluster.start()
        yield made


def offered(node: Testbed, *typed: str, before: tuple[str, ...] = ()) -> list[str]:
    """Return what bash offers for the last word, by the file that the package installs."""
    words = " ".join(f"'{word}'" for word in ("bpfsvc", *typed))
    script = (
        f"source {SCRIPT}; COMP_WORDS=({words}); COMP_CWORD={len(typed)};"
        " _bpfsvc_completion bpfsvc; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    process = node.node.popen(
        [*before, "bash", "-c", script],
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(SCRIPT.parents[4]),
        },
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = process.communicate(timeout=stretched(30))
    assert str(errors) == ""
    return str(output).split()


def test_tab_after_services_offers_the_services_of_the_node(node: Testbed) -> None:
    both = sorted(f"default/{service.name}" for service in (WEB, EMPTY))

    assert offered(node, "services", "") == both
    assert offered(node, "services", f"default/{WEB.name}") == [f"default/{WEB.name}"]
    assert offered(node, "services", WEB.name[:2]) == [
        name.removeprefix("default/") for name in both if name.startswith(f"default/{WEB.name[:2]}")
    ]
    assert offered(node, "services", "-n", "") == ["default"]
    assert offered(node, "services", "-n", "other", "") == []
    assert offered(node, "observe", "--service", "default/") == both
    assert offered(node, "history", "") == both


def test_a_service_that_is_gone_is_not_offered_any_more(node: Testbed) -> None:
    node.cluster.drop("empty")
    node.cluster.settle()

    assert offered(node, "services", "default/") == [f"default/{WEB.name}"]


def test_tab_after_maps_dump_offers_the_maps_of_the_build(node: Testbed) -> None:
    maps = offered(node, "maps", "dump", "")

    assert {"frontends", "backends", "sizes"} <= {*maps}
    assert offered(node, "maps", "dump", "front") == ["frontends"]


def test_a_user_who_may_not_read_the_maps_is_offered_nothing(node: Testbed) -> None:
    before = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all")

    assert offered(node, "services", "", before=before) == []
    assert "services" in offered(node, "se", before=before)
