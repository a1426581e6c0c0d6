"""What an operator does in an incident: let clients connect, and type commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.objects import Object
from bpfsvc.devtools.lab.patience import wait
from tests.lab.test_quarantine import GIVES_UP
from tests.lab.testbed import Named, Testbed


class Operator(NamedTuple):
    """Looks at the first node of a lab."""

    testbed: Testbed

    def apply(self, of: Named, made: Sequence[Object]) -> None:
        """Create a Service, or change it, and return when the kernel has it."""
        self.testbed.cluster.apply(of.name, *made)

    def remove(self, of: Named) -> None:
        """Remove a Service."""
        self.testbed.cluster.apply(of.name)

    def connects(self, of: Named, address: str = "", port: int = 0) -> bool:
        """Connect from outside, by default to the NodePort; True if a pod answers."""
        to = (address or self.testbed.node.address(4), port or of.node_port)
        with suppress(OSError):
            ask(self.testbed.client, *to, options=[GIVES_UP])
            return True
        return False

    def fails(self, of: Named, times: int = 4, **to: Any) -> None:
        """Have some clients fail to connect."""
        failed = 0
        while failed < times:
            failed += not self.connects(of, **to)

    def lines(self, *words: str) -> list[str]:
        """Return the lines that a bpfsvc command prints."""
        done = self.testbed.cluster.command(self.testbed.node, *words)
        assert done.stderr == ""
        return done.stdout.splitlines()

    def types(self, *words: str) -> str:
        """Return what a bpfsvc command prints, in one line of words."""
        return " ".join(" ".join(self.lines(*words)).split())

    def status(self) -> tuple[str, str]:
        """Return the first two lines of bpfsvc status: about the agent, and about traffic."""
        done = self.testbed.cluster.command(self.testbed.node, "status")
        agent, carries, *_ = done.stdout.splitlines()
        return agent, carries.removeprefix("carries:").strip()

    def reads_in_status(self, *texts: str) -> None:
        """Return when the line about traffic has these texts; the agent is healthy meanwhile."""
        wait(lambda: all(text in self.status()[1] for text in texts), f"status says {texts}", 30)
        assert self.status()[0] == "healthy"

    def doctor(self) -> list[dict[str, str]]:
        """Return the warnings of bpfsvc doctor."""
        node = self.testbed.node
        words = ("doctor", "-o", "json", "--cgroup-root", str(node.cgroup))
        done = self.testbed.cluster.command(node, *words)
        findings: list[dict[str, str]] = json.loads(done.stdout)["findings"]
        return [finding for finding in findings if finding["level"] == "warning"]

    def finding(self, text: str) -> dict[str, str]:
        """Return the warning of the doctor that has a text."""
        findings = self.doctor()
        named = [finding for finding in findings if text in finding["finding"]]
        assert named, findings
        return named[0]
