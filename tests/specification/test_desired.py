"""The entries of random clusters answer random flows as the specification does."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.specification.answers import Answer, answer, entries_of
from tests.specification.cases import flows, read_cases
from tests.specification.objects import Raw
from tests.specification.traffic import cases
from tests.specification.verdicts import evaluate


def disagreement(case: Raw, flow: Raw, found: Answer) -> str:
    """Return how the entries differ; empty where they agree or cannot know."""
    verdict = evaluate(case, flow)
    if verdict.unspecified:
        return ""
    wanted = Answer(verdict.verdict, verdict.endpoints, verdict.table_masquerade)
    return "" if found == wanted else f"{flow['id']}: {found} where {verdict} was expected"


# A cluster that fails is shown in its shrunk form; hypothesis' explanation takes as long again.
@settings(
    max_examples=100,
    deadline=None,
    phases=[*set(Phase) - {Phase.explain}],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(cases())
def test_entries_agree_with_the_specification(case: Raw) -> None:
    """About eligible endpoints, masquerade, and reject or drop where none is left."""
    entries = entries_of(case)
    found = [disagreement(case, flow, answer(case, flow, entries)) for flow in case["flows"]]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.parametrize(
    ("case", "flow"), [pytest.param(*pair, id=pair[1]["id"]) for pair in flows(read_cases())]
)
def test_entries_agree_about_the_sample(case: Raw, flow: Raw) -> None:
    assert not disagreement(case, flow, answer(case, flow, entries_of(case)))
