"""The threat model names the tests that show what holds somebody back, and they are there."""

from __future__ import annotations

import re

from tests.docs.test_documents import ROOT

MODEL = ROOT / "docs/security.md"
HEADINGS = ("From a pod", "From the network", "From the Kubernetes API", "From the node")


def test_every_test_that_the_threat_model_names_is_there() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", MODEL.read_text()))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_it_says_of_every_attacker_what_holds_back_and_what_does_not() -> None:
    parts = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", MODEL.read_text(), re.MULTILINE))
    for heading in HEADINGS:
        assert "| what holds it back | shown by |" in parts[heading]
        assert "**Not held back" in parts[heading]
