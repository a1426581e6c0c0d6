"""Random clusters cover all rules, and can be written as cases."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

from tests.specification.generation import random_cases
from tests.specification.objects import Raw
from tests.specification.traffic import cases
from tests.specification.verdicts import evaluate

RULES = {
    "4.1 not H",
    "4.1 iTP Cluster",
    "4.1 iTP Local",
    "4.1 iTP Local, L empty",
    "4.2 not H",
    "4.2 eTP Cluster",
    "4.3 not H",
    "4.3 local pod",
    "4.3 node address",
    "4.3 anyone else",
    "4.3 anyone else, L empty",
    "4.6 undefined port",
    "4.6 unallocated",
    "4.8 no frontend",
    "5 source not in range",
}


@pytest.mark.slow
def test_random_flows_cover_every_rule() -> None:
    met = Counter(flow["title"] for case in random_cases(120) for flow in case["flows"])
    assert set(met) == RULES


def test_written_cases_are_json_with_the_specifications_expectations() -> None:
    for case in json.loads(json.dumps(random_cases(10))):
        for flow in case["flows"]:
            assert flow["expect"] == evaluate(case, flow).as_expected()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_answers_are_consistent(case: Raw) -> None:
    """Endpoints come with ``dnat`` alone, and only endpoints are masqueraded."""
    for flow in case["flows"]:
        verdict = evaluate(case, flow)
        assert bool(verdict.endpoints) == (verdict.verdict == "dnat")
        assert not verdict.masquerade or verdict.endpoints
        assert set(verdict.masquerade_endpoints) < {*verdict.endpoints, ""}
        assert list(verdict.endpoints) == sorted(set(verdict.endpoints))
