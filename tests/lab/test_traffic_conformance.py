"""The recorded behaviour of a real kube-proxy, tested with real packets between namespaces.

Other tests compare the sample with the entries, the specification and the programs; here every flow
is a real connection, and the test checks what the backend sees.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from bpfsvc.devtools.lab.cluster import LabCluster
from tests.lab.case_flows import CaseFlow, check, set_up_case
from tests.lab.case_testbed import AgentSetup, CaseTestbed, objects
from tests.specification.cases import expected, read_cases

Raw = dict[str, Any]

CASES = sorted(read_cases(), key=AgentSetup.of)
FLOWS = [
    pytest.param(case, flow, id=flow["id"], marks=[pytest.mark.slow] if number else [])
    for case in CASES
    for number, flow in enumerate(case["flows"])
]
"""The flows of all cases in order: the first of each for "make test", the others slow."""


class Running(NamedTuple):
    """A testbed with an agent."""

    testbed: CaseTestbed
    cluster: LabCluster


class CaseTestbeds:
    """The testbeds of all cases so far, each in the state of its last case.

    The agent of the next testbed starts at the same time as this one, which saves half of the time.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._order = list(dict.fromkeys(map(AgentSetup.of, CASES)))
        self._running: dict[AgentSetup, Running] = {}
        self._cases: dict[AgentSetup, str] = {}

    def set_up(self, case: Raw) -> CaseTestbed:
        """Return a case's testbed, with its objects in the kernel and servers at its endpoints."""
        wanted = AgentSetup.of(case)
        if wanted not in self._cases:
            number = self._order.index(wanted)
            for each in self._order[number : number + 2]:
                self._launch(each)
        testbed, cluster = self._running[wanted]
        if self._cases.get(wanted) != case["id"]:
            set_up_case(testbed, case)
            cluster.put("case", *objects(case))
            cluster.agents[testbed.node.name].ready(timeout=60)
            cluster.settle(timeout=30)
            self._cases[wanted] = case["id"]
        return testbed

    def _launch(self, wanted: AgentSetup) -> None:
        if wanted in self._running:
            return
        testbed = self._stack.enter_context(CaseTestbed(wanted))
        cluster = self._stack.enter_context(LabCluster(testbed, options=wanted.options))
        cluster.launch(testbed.node)
        self._running[wanted] = Running(testbed, cluster)


@pytest.fixture(scope="module")
def testbeds() -> Iterator[CaseTestbeds]:
    with ExitStack() as stack:
        yield CaseTestbeds(stack)


@pytest.mark.parametrize(("case", "flow"), FLOWS)
def test_connections_reach_the_endpoints_of_kube_proxy(
    testbeds: CaseTestbeds, case: Raw, flow: Raw
) -> None:
    """The endpoints, and the client address that they see, are the same as with kube-proxy."""
    case_flow = CaseFlow(testbeds.set_up(case), case, flow)
    check(case_flow, expected(flow))


def test_the_whole_sample_is_tested() -> None:
    assert len(FLOWS) == 140
    assert len({case["category"] for case in CASES}) == 13
    assert all(flow["proto"] == "TCP" for case in CASES for flow in case["flows"])


BOUND = [
    pytest.param(case, flow, id=flow["id"])
    for case in CASES
    for flow in case["flows"]
    if flow["from"] == "localhost" and expected(flow)["verdict"] == "dnat"
]


@pytest.mark.parametrize(("case", "flow"), BOUND)
def test_a_client_bound_to_a_port_on_loopback_gets_an_error_at_once(
    testbeds: CaseTestbeds, case: Raw, flow: Raw
) -> None:
    """A limit: kube-proxy serves it in iptables mode, where packets of 127/8 may be routed.

    Here the backend's address replaces the frontend's before the route lookup, and there is no
    route from a loopback address. Without a port the socket gets another address.
    """
    case_flow = CaseFlow(testbeds.set_up(case), case, flow)
    case_flow.prepare()
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        case_flow.once(bound=True)
