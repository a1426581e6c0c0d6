"""An agent with a file of settings as kube-proxy's, and what comes of it on a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.lab.dial import tally
from bpfsvc.lab.patience import stretched
from tests.lab.scene import WEB, Scene, built, objects

SETTINGS = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.244.0.0/16,fd44::/16
conntrack: {tcpEstablishedTimeout: 2h0m0s, udpTimeout: 45s}
ipvs: {scheduler: lc}
frob: 1
"""


@pytest.fixture
def scene() -> Iterator[Scene]:
    """One node without an agent."""
    with built(layout="routed", nodes=1) as scene:
        scene.cluster.put("services", *objects(WEB, scene.lab.pods))
        yield scene


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the file of settings."""
    path = tmp_path / "config.conf"
    path.write_text(SETTINGS)
    return path


def sysctl(scene: Scene, name: str) -> str:
    """Read a sysctl of the node."""
    return scene.node.run(["cat", f"/proc/sys/{name.replace('.', '/')}"]).stdout.strip()


@pytest.mark.slow
def test_one_run_from_the_sysctls_to_the_end(scene: Scene, path: Path) -> None:
    """First the privileged part, then an agent that follows its file, then nothing is left."""
    with_file = ["--config", str(path)]
    options = [*scene.cluster.flags(scene.node), *with_file]
    done = scene.cluster.command(scene.node, "run", *options, "--init-only")
    assert done.returncode == 0, done.stderr
    assert sysctl(scene, "net.netfilter.nf_conntrack_tcp_timeout_established") == "7200"
    assert sysctl(scene, "net.netfilter.nf_conntrack_udp_timeout") == "45"
    assert sysctl(scene, "net.ipv4.ip_local_reserved_ports") == "10000-29999"
    assert not (scene.node.pin_root / "current").exists()

    scene.cluster.start(scene.node, options=with_file)
    agent = scene.cluster.agents[scene.node.name]
    assert agent.log.count(f"{path}:6: frob: unknown field, passed over") == 1
    assert agent.log.count("without effect here: ipvs.scheduler") == 1
    assert agent.log.count("ignored beside --config: --cluster-cidr") == 1

    path.write_text(SETTINGS + "mode: [\n")
    agent.expect("what the file said before holds")
    assert agent.health().status == 200

    path.write_text(SETTINGS + "mode: iptables\n")
    agent.expect(f"Error: {path} has changed, so this agent ended")
    assert agent.process.wait(timeout=stretched(10)) == 1
    del scene.cluster.agents[scene.node.name]
    assert tally(scene.node, WEB.vip(4), 80, count=20)

    done = scene.cluster.command(scene.node, "run", *options, "--cleanup")
    assert done.returncode == 0, done.stderr
    assert "nothing of bpfsvc is left here" in done.stdout
    assert not (scene.node.pin_root / "current").exists()
    scene.node.pin_root.mkdir()  # the lab takes it away itself
