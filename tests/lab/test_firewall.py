"""Rules of a firewall that name NodePorts or addresses of load balancers, on real packets.

What the hooks of netfilter see of a packet that bpfsvc translates, what the doctor says about rules
there, and that the rules which the documentation gives in their place do what they are for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.patience import wait
from tests.lab.recorded_rules import kube_proxys_rules
from tests.lab.testbed import INGRESS, WEB, Testbed, built_testbed, objects
from tests.migration.verify.kube_proxys_rules import LAYOUTS, Layout

pytestmark = pytest.mark.slow

_COUNTERS = """
table netdev guard {
	chain early {
		type filter hook ingress device DEVICE priority -500;
		ip daddr NODE tcp dport PORT counter
		tcp dport 8080 counter
	}
}
table inet guard {
	chain raw {
		type filter hook prerouting priority -300;
		ip daddr NODE tcp dport PORT counter
		tcp dport 8080 counter
	}
	chain forward {
		type filter hook forward priority 0;
		meta l4proto tcp ct original proto-dst PORT counter
		tcp dport 8080 counter
	}
}
"""

_IN_PLACE = """
table inet guard {
	chain forward {
		type filter hook forward priority 0;
		ip saddr CLIENT ip daddr BACKEND tcp dport 8080 drop
	}
}
"""


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """A node with an agent, and a Service with a NodePort and a load balancer's address."""
    with built_testbed(layout="routed", nodes=1) as made:
        backends = made.lab.pods[:1]
        ingress = list(INGRESS.values())
        made.cluster.put("services", *objects(WEB, backends, ingress=ingress))
        made.lab.client.route("80.11.12.0/24", via=made.node)
        made.cluster.start()
        yield made


@contextmanager
def rules(testbed: Testbed, text: str) -> Iterator[None]:
    """Write tables called ``guard``, the words in capitals replaced; remove them at the end."""
    node = testbed.node
    words = {
        "DEVICE": _uplink(testbed),
        "NODE": node.address(),
        "PORT": str(WEB.node_port),
        "CLIENT": str(testbed.lab.client.addresses[4]),
        "BACKEND": str(testbed.lab.pods[0].addresses[4]),
    }
    for word, value in words.items():
        text = re.sub(rf"\b{word}\b", value, text)
    node.run(["nft", "-f", "-"], input=text)
    try:
        yield
    finally:
        for family in re.findall(r"table (\w+) guard", text):
            node.run(["nft", "delete", "table", family, "guard"])


def _uplink(testbed: Testbed) -> str:
    routes = json.loads(
        testbed.node.run(["ip", "-j", "route", "get", str(testbed.lab.client.addresses[4])]).stdout
    )
    return str(routes[0]["dev"])


def counted(testbed: Testbed, family: str, chain: str) -> tuple[bool, bool]:
    """Return whether the two counters of a chain have seen packets."""
    listed = testbed.node.run(["nft", "list", "chain", family, "guard", chain]).stdout
    before, after = (int(each) for each in re.findall(r"counter packets (\d+)", listed))
    return before > 0, after > 0


def findings(testbed: Testbed) -> list[dict[str, Any]]:
    done = testbed.cluster.command(testbed.node, "doctor", "-o", "json", "--cgroup-root", "none")
    seen = [
        finding
        for finding in json.loads(done.stdout)["findings"]
        if finding["subject"] == "firewall"
    ]
    assert seen, done.stderr
    return [entry for entry in seen if entry["level"] == "warning"]


def reach(testbed: Testbed) -> str:
    return ask(testbed.client, testbed.node.address(), WEB.node_port).pod


@pytest.mark.parametrize("attach", ["clsact", "auto"])
def test_every_hook_of_netfilter_sees_the_endpoint_and_none_the_nodeport(
    testbed: Testbed, attach: str
) -> None:
    """Also netdev ingress, which is behind tc ingress, and what conntrack calls original.

    (The fast path is given up for such rules, but a moment later.)
    """
    testbed.cluster.stop(testbed.node)
    testbed.cluster.start(testbed.node, options=("--attach", attach, "--fast-path", "off"))
    with rules(testbed, _COUNTERS):
        assert reach(testbed) == testbed.lab.pods[0].name
        assert counted(testbed, "netdev", "early") == (False, True)
        assert counted(testbed, "inet", "raw") == (False, True)
        assert counted(testbed, "inet", "forward") == (False, True)
        seen = {
            finding["finding"].partition(": 1 rule")[0]: finding for finding in findings(testbed)
        }
    assert set(seen) == {
        "nftables: netdev guard, early",
        "nftables: inet guard, raw",
        "nftables: inet guard, forward",
    }
    for entry in seen.values():
        assert f"default/web:web (nodeport:{WEB.node_port}/TCP)" in entry["finding"]


@pytest.mark.parametrize("tool", ["iptables-legacy", "iptables-nft"])
def test_a_rule_that_drops_a_nodeport_drops_nothing_and_is_named(
    testbed: Testbed, tool: str
) -> None:
    """The doctor prints it as iptables-save does."""
    node = testbed.node
    rule = ["PREROUTING", "-p", "tcp", "--dport", str(WEB.node_port), "-j", "DROP"]
    vip = ["PREROUTING", "-d", INGRESS[4], "-p", "tcp", "-j", "DROP"]
    node.run([tool, "-w", "-t", "raw", "-A", *rule])
    node.run([tool, "-w", "-t", "mangle", "-A", *vip])
    try:
        assert reach(testbed) == testbed.lab.pods[0].name
        assert ask(testbed.client, INGRESS[4], 80).pod == testbed.lab.pods[0].name
        mangle, raw = sorted(findings(testbed), key=lambda each: str(each["finding"]))
    finally:
        node.run([tool, "-w", "-t", "raw", "-D", *rule])
        node.run([tool, "-w", "-t", "mangle", "-D", *vip])
    flavour = tool.rpartition("-")[2]
    assert raw["finding"].startswith(f"iptables ({flavour}), IPv4, table raw, PREROUTING: 1 rule")
    assert raw["finding"].endswith(f"-A PREROUTING -p tcp -m tcp --dport {WEB.node_port} -j DROP")
    assert f"default/web:web ({INGRESS[4]}:80/TCP)" in mangle["finding"]
    assert "docs/firewalls.md" in raw["hint"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_before_the_migration_services_are_those_of_kube_proxys_rules(layout: Layout) -> None:
    """Nothing of bpfsvc is there yet; a real kube-proxy wrote the rules."""
    with built_testbed(layout="routed", nodes=1) as testbed, kube_proxys_rules(testbed, layout):
        rule = ["PREROUTING", "-p", "tcp", "--dport", "30011", "-j", "DROP"]
        testbed.node.run(["iptables-nft", "-w", "-t", "raw", "-A", *rule])
        (found,) = findings(testbed)
    assert (
        "1 rule will no longer see packets to prod/node-port:web (nodeport:30011/TCP)"
        in (found["finding"])
    )


def test_without_such_rules_there_is_no_warning(testbed: Testbed) -> None:
    assert findings(testbed) == []


def test_a_rule_for_the_endpoint_in_forward_does_what_the_lost_one_did(testbed: Testbed) -> None:
    """The client's address is still there: it is masqueraded when the packet leaves."""
    with rules(testbed, _IN_PLACE):
        assert findings(testbed) == []
        with pytest.raises(OSError, match="timed out"):
            ask(testbed.client, testbed.node.address(), WEB.node_port, timeout=1)
    assert reach(testbed) == testbed.lab.pods[0].name


def test_the_agent_says_so_in_its_log_once_it_serves(testbed: Testbed) -> None:
    """One line, a warning."""
    cluster, node = testbed.cluster, testbed.node
    with rules(testbed, _COUNTERS):
        cluster.stop(node)
        cluster.start(node)
        agent = cluster.agents[node.name]
        wait(lambda: "no longer see packets" in agent.log, "the warning")
        (line,) = (text for text in agent.log.splitlines() if "no longer see packets" in text)
    assert " WARNING " in line
    assert f"default/web:web (nodeport:{WEB.node_port}/TCP)" in line
