"""Which level of the fast path a node gets: the best that its rules allow, and none in doubt."""

from __future__ import annotations

from typing import Any

import pytest

from bpfsvc.base.errors import KernelError
from bpfsvc.base.fast_path import ESTABLISHED, FAST, LEVELS_OF_MODE, STACK, FastPathUse
from bpfsvc.doctor import agent_checks
from bpfsvc.doctor.agent_checks import FastPathCheck
from bpfsvc.doctor.collect.fast_path import ForwardingRules
from bpfsvc.doctor.facts import FastPathFacts
from bpfsvc.migration.netfilter.nftables import Chain
from tests.doctor.test_fast_path import ruled

AUTO = LEVELS_OF_MODE["auto"]

PLAIN = FastPathFacts()
POLICY = ruled("FORWARD -s 10.9.0.0/16 -j DROP")
QUEUE = ruled("FORWARD -j NFQUEUE --queue-num 1")
UNSEEN = PLAIN._replace(unseen=("iptables cannot be read",))
QUIET = POLICY._replace(tracks=False)


class Node:
    """A node with facts that a test changes; ``error`` is raised in place of facts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.facts = PLAIN
        self.chains: tuple[Chain, ...] = ()
        self.each_packet: tuple[str, ...] = ()
        self.error: Exception | None = None
        self.asked: list[str] = []
        monkeypatch.setattr(agent_checks, "read_network", lambda: None)
        monkeypatch.setattr(agent_checks, "read_legacy_rules", lambda: ForwardingRules())
        monkeypatch.setattr(agent_checks, "read_nft_rules", self._nft_rules)
        monkeypatch.setattr(agent_checks, "read_each_packet", self._each_packet)
        monkeypatch.setattr(agent_checks, "fast_path_facts", self._facts)

    def _nft_rules(self) -> ForwardingRules:
        self.asked.append("chains")
        return ForwardingRules()

    def _each_packet(self, *_: object) -> ForwardingRules:
        self.asked.append("rules")
        return ForwardingRules(each_packet=self.each_packet)

    def _facts(self, *_: object, **_pods: object) -> FastPathFacts:
        if self.error:
            raise self.error
        return self.facts._replace(chains=self.chains)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node without rules."""
    return Node(monkeypatch)


def look(levels: Any, level: Any = STACK, reason: str = "") -> FastPathUse:
    """Return the level for a node that has another one."""
    return FastPathCheck((), levels).look(FastPathUse(level, reason), rules_changed=True)


def test_a_node_without_rules_is_fast(node: Node) -> None:
    node.facts = PLAIN
    assert look(AUTO) == (FAST, "")


def test_a_rule_about_connections_leaves_their_middle_fast_and_is_the_reason(node: Node) -> None:
    node.facts = POLICY
    level, reason = look(AUTO)
    assert level == ESTABLISHED
    assert "-s 10.9.0.0/16 -j DROP" in reason


def test_a_rule_about_each_packet_leaves_all_to_the_stack_and_is_the_reason(node: Node) -> None:
    node.facts = QUEUE
    level, reason = look(AUTO)
    assert level == STACK
    assert "may have to see each packet" in reason


def test_the_rules_of_nftables_are_printed_only_where_the_fast_level_is_forbidden(
    node: Node,
) -> None:
    assert look(AUTO).level == FAST
    assert node.asked == ["chains"]
    node.chains = (Chain("inet", "guard", "forward"),)
    node.each_packet = ("nftables may have to see each packet in inet guard forward",)
    assert look(AUTO) == (STACK, node.each_packet[0])
    assert node.asked == ["chains", "chains", "rules"]


def test_rules_of_nftables_that_have_not_changed_are_not_read_again(node: Node) -> None:
    node.chains = (Chain("inet", "guard", "forward"),)
    check = FastPathCheck((), AUTO)
    use = check.look(FastPathUse(STACK), rules_changed=True)
    assert check.look(use, rules_changed=False) == use
    assert node.asked == ["chains", "rules"]
    assert check.look(use, rules_changed=True) == use
    assert node.asked == ["chains", "rules"] * 2


@pytest.mark.parametrize("facts", [PLAIN, POLICY], ids=["no rules", "a policy"])
def test_the_mode_established_never_bypasses_the_beginning(node: Node, facts: Any) -> None:
    node.facts = facts
    assert look(LEVELS_OF_MODE["established"]) == (ESTABLISHED, "")


@pytest.mark.parametrize("now", [FAST, ESTABLISHED, STACK])
def test_each_level_is_left_for_the_one_that_the_rules_allow(node: Node, now: Any) -> None:
    for facts, level in ((PLAIN, FAST), (POLICY, ESTABLISHED), (QUEUE, STACK)):
        node.facts = facts
        assert look(AUTO, now).level == level


def test_what_cannot_be_seen_begins_no_level_and_ends_none(node: Node) -> None:
    """A program may fail to run once under load."""
    node.facts = UNSEEN
    assert look(AUTO) == (STACK, "iptables cannot be read")
    assert look(AUTO, FAST) == (FAST, "")
    assert look(AUTO, ESTABLISHED) == (ESTABLISHED, "iptables cannot be read")


def test_a_level_is_not_left_for_another_that_is_in_doubt(node: Node) -> None:
    node.facts = POLICY._replace(unseen=UNSEEN.unseen)
    assert look(AUTO, FAST) == (STACK, "iptables cannot be read")


def test_where_netfilter_has_no_connections_none_can_be_established(node: Node) -> None:
    """On a quiet node there may be none for a moment, which ends nothing."""
    node.facts = QUIET
    level, reason = look(AUTO)
    assert level == STACK
    assert "tracks no connections" in reason
    assert look(AUTO, ESTABLISHED).level == ESTABLISHED


def test_a_failed_look_keeps_the_level_and_its_reason(node: Node) -> None:
    node.error = KernelError("out of memory")
    assert look(AUTO, FAST) == (FAST, "")
    assert look(AUTO, ESTABLISHED, "a rule") == (ESTABLISHED, "a rule")
    level, reason = look(AUTO)
    assert level == STACK
    assert "cannot be checked: out of memory" in reason


@pytest.mark.parametrize("now", [FAST, ESTABLISHED, STACK])
def test_rules_that_are_not_understood_leave_all_to_the_stack(node: Node, now: Any) -> None:
    node.error = ValueError("odd")
    level, reason = look(AUTO, now)
    assert level == STACK
    assert "odd" in reason
