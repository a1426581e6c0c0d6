"""A firewall rule in FORWARD drops packets to endpoints: no client outside reaches the Service."""

from __future__ import annotations

import pytest

from bpfsvc.devtools.lab.patience import wait
from tests.incidents.operator import Operator
from tests.lab.test_observe import observing, of_service
from tests.lab.testbed import Named, objects

pytestmark = pytest.mark.slow

BLOCKED = Named("blocked", 63)


@pytest.mark.parametrize("tool", ["iptables-nft", "nft"])
def test_doctor_names_the_rule_and_the_command_that_removes_it(
    operator: Operator, tool: str
) -> None:
    node = operator.testbed.node
    operator.apply(BLOCKED, objects(BLOCKED, operator.testbed.lab.pods))
    assert operator.connects(BLOCKED)
    if tool == "nft":
        node.run(["nft", "add table inet site"])
        node.run(["nft", "add chain inet site forwarded { type filter hook forward priority 0; }"])
        node.run(["nft", "add rule inet site forwarded tcp dport 8080 drop"])
    else:
        node.run([tool, "-A", "FORWARD", "-p", "tcp", "--dport", "8080", "-j", "DROP"])
    wait(lambda: not operator.connects(BLOCKED), "the fast path is given up", 60)
    with observing(operator.testbed, "--drops-elsewhere") as observer:
        operator.fails(BLOCKED, 3)
        told = observer.next(of_service(BLOCKED.name, "dropped_elsewhere"))
    assert told["reason"] == "SKB_DROP_REASON_NETFILTER_DROP"
    operator.reads_in_status("blocked:web", "unanswered")
    finding = operator.finding("a rule drops forwarded packets to the endpoints of")
    assert "default/blocked:" in finding["finding"]
    _, _, command = finding["hint"].partition("remove it: ")
    node.run(command.split())
    assert operator.connects(BLOCKED)
    if tool == "nft":
        node.run(["nft", "delete table inet site"])
    operator.remove(BLOCKED)
