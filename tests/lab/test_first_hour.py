"""The page docs/first-hour.md, typed from its first to its last command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bpfsvc.devtools.lab.patience import stretched
from bpfsvc.devtools.lab.sandbox import COMPILED
from tests.docs.test_documents import ROOT

pytestmark = pytest.mark.slow

_BLOCK = re.compile(r"^```(sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CACHE = Path("/run/bpfsvc-lab/cache")


def commands() -> list[str]:
    """Return what the page has its reader type, in the shell that it opens."""
    page = (ROOT / "docs/first-hour.md").read_text()
    typed = []
    for kind, text in _BLOCK.findall(page[page.index("Everything below") :]):
        typed += [text] if kind == "sh" else re.findall(r"^# (.+)$", text, re.MULTILINE)
    return typed


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a shell of the sandbox prints; a command that fails ends it.

    It has a network and mounts of its own, below those of this run.
    """
    script = tmp_path_factory.mktemp("first") / "hour.sh"
    COMPILED.mkdir(parents=True, exist_ok=True)
    kept = f"mkdir -p {_CACHE}; mount --bind {COMPILED} {_CACHE}\n"
    end = "trap 'kill -9 $(jobs -p) || true' EXIT\n"
    script.write_text("\n".join(["set -eu", kept, end, *commands()]))
    done = subprocess.run(
        ["unshare", "--net", "--mount", "bash", script],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=stretched(60),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_says_every_step(output: str) -> None:
    for text in (
        "ready: 1 Service in the kernel",
        "this is pod-1\n",
        "this is pod-2\n",
        "\nhealthy\n",
        "\ndefault/web:http TCP IPv4  random\n",
        "dnat  10.96.0.10:80/TCP of default/web\n  -> 10.244.0.11:8080\n  -> 10.244.0.12:8080\n",
    ):
        assert text in output


def test_after_the_endpoint_has_left_and_after_the_agent_has_died_the_other_one_answers(
    output: str,
) -> None:
    later = output[output.index("-1 endpoint [-10.244.0.12:8080]") :]

    assert later.count("this is pod-1\n") == 7
    assert "this is pod-2" not in later
    assert output.endswith("nothing of bpfsvc is left here\n")
