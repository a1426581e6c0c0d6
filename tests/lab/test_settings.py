"""An agent with a configuration file like kube-proxy's, and its effect on a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.devtools.lab.dial import tally
from bpfsvc.devtools.lab.patience import stretched
from tests.lab.testbed import WEB, Testbed, built_testbed, objects

SETTINGS = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.244.0.0/16,fd44::/16
conntrack: {tcpEstablishedTimeout: 2h0m0s, udpTimeout: 45s}
ipvs: {scheduler: lc}
frob: 1
"""


@pytest.fixture
def testbed() -> Iterator[Testbed]:
    """One node without an agent."""
    with built_testbed(layout="routed", nodes=1) as testbed:
        testbed.cluster.put("services", *objects(WEB, testbed.lab.pods))
        yield testbed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the configuration file."""
    path = tmp_path / "config.conf"
    path.write_text(SETTINGS)
    return path


def sysctl(testbed: Testbed, name: str) -> str:
    """Read a sysctl of the node."""
    return testbed.node.run(["cat", f"/proc/sys/{name.replace('.', '/')}"]).stdout.strip()


@pytest.mark.slow
def test_one_run_with_a_configuration_file(testbed: Testbed, path: Path) -> None:
    """First the privileged sysctls, then an agent that watches its file, then a full cleanup."""
    with_file = ["--config", str(path)]
    options = [*testbed.cluster.flags(testbed.node), *with_file]
    done = testbed.cluster.command(testbed.node, "run", *options, "--init-only")
    assert done.returncode == 0, done.stderr
    assert sysctl(testbed, "net.netfilter.nf_conntrack_tcp_timeout_established") == "7200"
    assert sysctl(testbed, "net.netfilter.nf_conntrack_udp_timeout") == "45"
    assert sysctl(testbed, "net.ipv4.ip_local_reserved_ports") == "10000-29999"
    assert not (testbed.node.pin_root / "current").exists()

    testbed.cluster.start(testbed.node, options=with_file)
    agent = testbed.agent
    assert agent.log.count(f"{path}:6: frob: unknown field, ignored") == 1
    assert agent.log.count("without effect here: ipvs.scheduler") == 1
    assert agent.log.count("ignored beside --config: --cluster-cidr") == 1

    path.write_text(SETTINGS + "mode: [\n")
    agent.expect("the settings read before stay in effect")
    assert agent.health().status == 200

    path.write_text(SETTINGS + "mode: iptables\n")
    agent.expect(f"Error: {path} has changed, so this agent ended")
    assert agent.process.wait(timeout=stretched(10)) == 1
    del testbed.cluster.agents[testbed.node.name]
    assert tally(testbed.node, WEB.vip(4), 80, count=20)

    done = testbed.cluster.command(testbed.node, "run", *options, "--cleanup")
    assert done.returncode == 0, done.stderr
    assert "nothing of bpfsvc is left here" in done.stdout
    assert not (testbed.node.pin_root / "current").exists()
    testbed.node.pin_root.mkdir()  # the lab removes it itself
