"""``bpfsvc verify`` on a node: the recorded rules of a real kube-proxy beside a running agent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.devtools.lab.objects import Object
from bpfsvc.devtools.lab.objects import node as an_object_of
from tests.lab import kubeproxy
from tests.lab.recorded_rules import kube_proxys_rules
from tests.lab.testbed import Testbed, built_testbed
from tests.migration.verify.kube_proxys_rules import LAYOUTS, RECORDED, Layout, objects
from tests.migration.verify.test_ipvs_rules import RULES, SETS, addresses

pytestmark = pytest.mark.slow

FLAGS: dict[Layout, str] = {
    "iptables": "iptables-nft",
    "nftables": "nftables",
    "nftables-1.38": "nftables",
}


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """Two nodes as in the recording, with an agent on the first."""
    with built_testbed(layout="routed") as made:
        made.cluster.nodes = made.lab.nodes[:1]
        node = made.node
        made.cluster.put("node", an_object_of(node.name, node.addresses.values()))
        made.cluster.put("services", *objects())
        made.cluster.start()
        yield made


def verify(testbed: Testbed, *options: str) -> tuple[int, str, str]:
    done = testbed.cluster.command(testbed.node, "verify", *options)
    return done.returncode, done.stdout, done.stderr


def differing(testbed: Testbed, *options: str) -> list[dict[str, Any]]:
    """Return the differences; there must be some."""
    status, output, _ = verify(testbed, "-o", "json", "--wait", "0", *options)
    assert status == 1
    differences: list[dict[str, Any]] = json.loads(output)["differences"]
    return differences


def settled(testbed: Testbed, *changed: Object) -> None:
    """Change objects, and wait until the agent has written them."""
    names = {item["metadata"]["name"] for item in changed}
    rest = [item for item in objects() if item["metadata"]["name"] not in names]
    testbed.cluster.apply("services", *rest, *changed)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_services_are_no_difference(testbed: Testbed, layout: Layout) -> None:
    settled(testbed)
    testbed.cluster.drop("settled")
    with kube_proxys_rules(testbed, layout):
        status, output, errors = verify(testbed)
    assert (status, errors) == (0, "")
    assert output == (
        f"kube-proxy ({FLAGS[layout]}) and bpfsvc do the same at 64 frontends of 15 Services\n"
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_service_that_differs_is_named_with_what_differs(
    testbed: Testbed, layout: Layout
) -> None:
    """The exit status is 1; other Services, which do not differ, are not shown."""
    (unnamed,) = (item for item in objects() if item["metadata"]["name"] == "unnamed-ipv4")
    unnamed["endpoints"][0]["addresses"] = ["10.244.2.11"]
    settled(testbed, unnamed)
    with kube_proxys_rules(testbed, layout):
        differences = differing(testbed)
        status, table, _ = verify(testbed, "--wait", "0")
    settled_mark = [difference for difference in differences if "settled" in difference["service"]]
    assert [difference for difference in differences if difference not in settled_mark] == [
        {
            "service": "prod/unnamed:443",
            "frontend": "10.96.0.24:443/TCP",
            "clients": ["pod", "node", "other"],
            "what": "backends",
            "kube_proxy": ["10.244.1.11:8443"],
            "bpfsvc": ["10.244.2.11:8443"],
        }
    ]
    assert status == 1
    (line,) = (line for line in table.splitlines() if "unnamed" in line)
    assert line.split() == [
        *("prod/unnamed:443", "10.96.0.24:443/TCP", "pod,node,other", "backends"),
        *("10.244.1.11:8443", "10.244.2.11:8443"),
    ]


def test_without_rules_there_is_nothing_to_compare(testbed: Testbed) -> None:
    status, output, errors = verify(testbed)
    assert (status, output) == (2, "")
    assert "kube-proxy has no iptables, nftables or ipvs rules on this node" in errors


def test_ipvs_is_compared_as_the_sets_and_rules_on_the_node_say(
    testbed: Testbed, tmp_path: Path
) -> None:
    """The kernel of the tests has no ipvs, so ipvsadm is one that prints what was recorded."""
    node = testbed.node
    settled(testbed)
    testbed.cluster.drop("settled")
    tool = tmp_path / "ipvsadm"
    tool.write_text(f'#!/bin/sh\ntest "$*" = -Sn && exec cat {RECORDED / "ipvsadm.txt"}\n')
    tool.chmod(0o755)
    node.run(["ip", "link", "add", "kube-ipvs0", "type", "bridge"])
    try:
        held = "".join(f"address add {address} dev kube-ipvs0\n" for address in addresses())
        node.run(["ip", "-batch", "-"], input=held)
        node.run(["ipset", "restore"], input=SETS)
        for family, restore in ((4, "iptables-nft-restore"), (6, "ip6tables-nft-restore")):
            nat = RULES[family].read_text().partition("*nat\n")[2].partition("COMMIT")[0]
            node.run([restore, "--noflush"], input=f"*nat\n{nat}COMMIT\n")
        tools = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        words = ("verify", "-o", "json", "--wait", "0")
        done = testbed.cluster.command(node, *words, env=tools)
        assert (done.returncode, done.stderr) == (1, "")
        result = json.loads(done.stdout)
        assert result["compared"][0]["rules"] == "ipvs"
        assert result["compared"][0]["kube_proxy_frontends"] == 64
        services = {difference["service"] for difference in result["differences"]}
        assert services == {
            *("prod/etp-local:web", "prod/affine-local:web", "prod/etp-none-here:web"),
            "prod/itp-none-here:web",
        }
    finally:
        for option in ("--yes", "--release"):
            testbed.cluster.command(node, "cleanup", "--kube-proxy", option)
    assert node.run(["ipset", "list", "-name"]).stdout == ""
    assert "kube-ipvs0" not in node.interfaces()


def test_rules_that_kube_proxy_has_written_by_half_are_read_again(
    testbed: Testbed, tmp_path: Path
) -> None:
    """The first listing of a table has the table alone, as between two transactions."""
    settled(testbed)
    testbed.cluster.drop("settled")
    half = tmp_path / "half.json"
    half.write_text('{"nftables": [{"table": {"family": "ip", "name": "kube-proxy"}}]}')
    nft = tmp_path / "nft"
    nft.write_text(
        "#!/bin/sh\n"
        f'test "$*" = "-j list table ip kube-proxy" && mkdir {tmp_path}/once && exec cat {half}\n'
        f'exec {shutil.which("nft")} "$@"\n'
    )
    nft.chmod(0o755)
    tools = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with kube_proxys_rules(testbed, "nftables-1.38"):
        done = testbed.cluster.command(testbed.node, "verify", env=tools)
        assert (tmp_path / "once").exists()
        assert (done.returncode, "do the same at 64 frontends" in done.stdout) == (0, True)
        (tmp_path / "once").rmdir()
        done = testbed.cluster.command(testbed.node, "verify", "--wait", "0", env=tools)
        assert done.returncode == 2
        assert "kube-proxy's chain services was not found" in done.stderr


def test_cleanup_removes_all_that_1_38_writes_and_nothing_else(testbed: Testbed) -> None:
    """A table of another family that has kube-proxy's name is another program's."""
    node = testbed.node
    others = ("inet kube-proxy", "ip kube-proxy-guard", "netdev kube-proxy")
    node.run(["nft", "-f", "-"], input="".join(f"add table {name}\n" for name in others))
    try:
        before = kubeproxy.rules(node)
        with kube_proxys_rules(testbed, "nftables-1.38"):
            written = "\n".join(kubeproxy.rules(node)["nftables"])
            assert "counter localhost-nodeport-rejected-udp" in written
            assert "dnat to 10.244.1.11:8443" in written
            assert "dnat to [fd44:1::11]:8443" in written
        assert kubeproxy.rules(node) == before
    finally:
        for name in others:
            node.run(["nft", "delete", "table", *name.split()])


def test_of_rules_in_two_modes_those_of_one_are_chosen(testbed: Testbed) -> None:
    """No kube-proxy runs that could be asked which of them it uses."""
    settled(testbed)
    with kube_proxys_rules(testbed, "nftables", "iptables"):
        status, _, errors = verify(testbed)
        assert status == 2
        assert "kube-proxy's rules are here more than once: nftables, iptables-nft" in errors
        for flag in ("nftables", "iptables-nft"):
            services = {difference["service"] for difference in differing(testbed, "--rules", flag)}
            assert not any(difference.startswith("prod/") for difference in services)
