"""The rows of random clusters answer random flows as the specification does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.specification.answers import Answer, answer, rows_of
from tests.specification.cases import flows, read_cases
from tests.specification.frontends import VIP, matching
from tests.specification.objects import Raw, source_ranges
from tests.specification.traffic import cases
from tests.specification.verdicts import Verdict, evaluate

# -- what rows do not decide yet; empty when they decide everything --


def needs_source_ranges(case: Raw, flow: Raw, _: Verdict) -> bool:
    """Rows answer everyone alike at a load balancer's address."""
    return any(one.kind == VIP and source_ranges(one.port) for one in matching(case, flow))


def needs_service_cidrs(_case: Raw, _flow: Raw, verdict: Verdict) -> bool:
    """Rows have nothing for undefined ports of cluster IPs and for unallocated ones."""
    return verdict.rule.startswith("4.6")


GAPS: list[Callable[[Raw, Raw, Verdict], bool]] = [needs_source_ranges, needs_service_cidrs]


def disagreement(case: Raw, flow: Raw, found: Answer) -> str:
    """Say what rows answer otherwise; nothing where they agree or cannot know."""
    verdict = evaluate(case, flow)
    if verdict.unspecified or any(gap(case, flow, verdict) for gap in GAPS):
        return ""
    wanted = Answer(verdict.verdict, verdict.endpoints, verdict.table_masquerade)
    return "" if found == wanted else f"{flow['id']}: {found} where {verdict} was expected"


# -- what they do --


# A cluster that fails is told by its shrunk form; explaining it takes as long again.
@settings(
    max_examples=100,
    deadline=None,
    phases=[*set(Phase) - {Phase.explain}],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(cases())
def test_rows_agree_with_the_specification(case: Raw) -> None:
    """On who is eligible, who is masqueraded, and whether silence or a refusal is left."""
    rows = rows_of(case)
    found = [disagreement(case, flow, answer(case, flow, rows)) for flow in case["flows"]]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.parametrize(
    ("case", "flow"), [pytest.param(*pair, id=pair[1]["id"]) for pair in flows(read_cases())]
)
def test_rows_agree_about_the_sample(case: Raw, flow: Raw) -> None:
    assert not disagreement(case, flow, answer(case, flow, rows_of(case)))
