"""The specification agrees with all recorded results of a real kube-proxy."""

from __future__ import annotations

import pytest

from tests.specification.affinity import affinity_seconds
from tests.specification.cases import expected, flows, read_cases
from tests.specification.healthchecks import health_checks
from tests.specification.objects import Raw, service_key, services
from tests.specification.verdicts import evaluate

CASES = read_cases()


@pytest.mark.parametrize(
    ("case", "flow"), [pytest.param(*pair, id=pair[1]["id"]) for pair in flows(CASES)]
)
def test_a_flow_is_answered_as_kube_proxy_does(case: Raw, flow: Raw) -> None:
    verdict = evaluate(case, flow)
    assert verdict.as_expected() == expected(flow), verdict
    assert not verdict.unspecified


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case["id"]) for case in CASES if "hcnp" in case]
)
def test_health_checks_are_answered_as_kube_proxy_does(case: Raw) -> None:
    answers = {
        name: {
            "port": check.port,
            "http_status": check.http_status,
            "localEndpoints": check.local_endpoints,
        }
        for name, check in health_checks(case, family=4).items()
    }
    assert answers == case["hcnp"]


def test_affinity_lasts_as_long_as_with_kube_proxy() -> None:
    for case in CASES:
        by_name = {"/".join(service_key(one)): one for one in services(case)}
        for fact in case.get("affinity", []):
            assert affinity_seconds(by_name[fact["service"]]) == fact["timeout_seconds"]


def test_the_whole_sample_is_checked() -> None:
    assert len(list(flows(CASES))) == 140
