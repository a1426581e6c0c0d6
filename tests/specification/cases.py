"""The format of cases: a node, its objects, and flows with what a real kube-proxy does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.specification.clients import destination
from tests.specification.objects import Raw
from tests.specification.verdicts import evaluate

SAMPLE = Path(__file__).parent.parent / "conformance" / "sample.json"
FORMAT = "bpfsvc-kube-proxy-conformance/1"


def read_cases(path: Path = SAMPLE) -> list[dict[str, Any]]:
    """Return the cases of a file."""
    document = json.loads(path.read_text())
    assert document["format"] == FORMAT
    cases: list[dict[str, Any]] = document["cases"]
    return cases


def flows(cases: list[dict[str, Any]]) -> Iterator[tuple[Raw, Raw]]:
    """Yield all flows, each with its case."""
    for case in cases:
        for flow in case["flows"]:
            yield case, flow


def expected(flow: Raw) -> dict[str, Any]:
    """Return what bpfsvc must do: nftables mode, but NodePorts on loopback as in iptables mode."""
    mode = "expect_iptables" if destination(flow).is_loopback else "expect_nftables"
    expect: dict[str, Any] = flow.get(mode, flow["expect"])
    return expect


def written(case: Raw) -> dict[str, Any]:
    """Return a case with what the specification expects of its flows.

    Flows the specification leaves open are dropped, so that every flow of the case can be checked.
    """
    answers = [(flow, evaluate(case, flow)) for flow in case["flows"]]
    return {
        **case,
        "flows": [
            {
                **flow,
                "id": f"{case['id']}/{number:02}",
                "title": answer.rule,
                "stated": "derived",
                "expect": answer.as_expected(),
            }
            for number, (flow, answer) in enumerate(answers, start=1)
            if not answer.unspecified
        ],
    }
