"""What a real kube-proxy was seen to do, done by real packets between namespaces.

The sample is asked of rows, of the specification and of the programs elsewhere; here every flow of
it is a connection that a client opens, and what counts is what the backend saw of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from bpfsvc.lab.cluster import Cluster
from tests.lab.asked import Asked, check, equip
from tests.lab.sites import Site, Surroundings, objects
from tests.specification.cases import expected, read_cases

Raw = dict[str, Any]

CASES = sorted(read_cases(), key=Surroundings.of)
FLOWS = [pytest.param(case, flow, id=flow["id"]) for case in CASES for flow in case["flows"]]

TOLD_AT_ONCE = {"itp-local-none/02"}
"""Dropped connections of the node's own processes: a socket hook can refuse them, not lose them, so
connect fails with EHOSTUNREACH where with kube-proxy it would time out."""


class Running(NamedTuple):
    """A site with an agent."""

    site: Site
    cluster: Cluster


class Stage:
    """The sites of all cases met so far, each as the last of its cases left it.

    While one agent starts, that of the next site does so too: half of the time goes there.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._order = list(dict.fromkeys(map(Surroundings.of, CASES)))
        self._running: dict[Surroundings, Running] = {}
        self._cases: dict[Surroundings, str] = {}

    def set_up(self, case: Raw) -> Site:
        """Give a case's site, where its objects are in the kernel and its endpoints listen."""
        wanted = Surroundings.of(case)
        if wanted not in self._cases:
            number = self._order.index(wanted)
            for each in self._order[number : number + 2]:
                self._launch(each)
        site, cluster = self._running[wanted]
        if self._cases.get(wanted) != case["id"]:
            equip(site, case)
            cluster.put("case", *objects(case))
            cluster.agents[site.node.name].ready(timeout=60)
            cluster.settle(timeout=30)
            self._cases[wanted] = case["id"]
        return site

    def _launch(self, wanted: Surroundings) -> None:
        if wanted in self._running:
            return
        site = self._stack.enter_context(Site(wanted))
        cluster = self._stack.enter_context(Cluster(site, options=wanted.options))
        cluster.launch(site.node)
        self._running[wanted] = Running(site, cluster)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack)


@pytest.mark.parametrize(("case", "flow"), FLOWS)
def test_connections_go_where_kube_proxy_sends_them(stage: Stage, case: Raw, flow: Raw) -> None:
    """The endpoints, and the client's address as they see it, are those of kube-proxy."""
    asked = Asked(stage.set_up(case), case, flow)
    check(asked, expected(flow), told_at_once=flow["id"] in TOLD_AT_ONCE)


def test_the_whole_sample_is_asked() -> None:
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
def test_a_client_bound_to_loopback_is_told_that_there_is_no_way(
    stage: Stage, case: Raw, flow: Raw
) -> None:
    """A limit: kube-proxy serves it in iptables mode, by letting packets of 127/8 be routed.

    Here the backend's address takes the frontend's place before a route is looked up, and from a
    loopback address there is none.
    """
    asked = Asked(stage.set_up(case), case, flow)
    asked.prepare()
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        asked.once(bound=True)
