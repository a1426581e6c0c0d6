"""What the agent logs when it starts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bpfsvc import __version__
from bpfsvc.agent.start_log import ready_line, start_lines
from bpfsvc.config.config import Config
from bpfsvc.services.scheduling.schedulers import Scheduler
from tests.config.settings import DEFAULTS

KERNEL = os.uname().release


def test_version_node_kernel_mode_and_source_come_first() -> None:
    first, _ = start_lines(replace(DEFAULTS, node_name="node-1", manifests=Path("/etc/manifests")))
    assert first == (
        f"bpfsvc {__version__} on node node-1, kernel {KERNEL}:"
        " mode nftables, objects from the manifests in /etc/manifests"
    )


@pytest.mark.parametrize(
    ("config", "source"),
    [
        pytest.param(
            replace(DEFAULTS, node_name="n"), "the API server of this cluster", id="in a pod"
        ),
        pytest.param(
            replace(DEFAULTS, node_name="n", kubeconfig=Path("/etc/kubeconfig")),
            "the API server of /etc/kubeconfig",
            id="a kubeconfig",
        ),
        pytest.param(
            replace(
                DEFAULTS,
                node_name="n",
                kubeconfig=Path("/etc/kubeconfig"),
                master="https://10.0.0.1",
            ),
            "the API server https://10.0.0.1",
            id="another address",
        ),
    ],
)
def test_the_source_of_objects_is_named(config: Config, source: str) -> None:
    first, _ = start_lines(config)
    assert first.endswith(f", objects from {source}")


@pytest.mark.parametrize(
    ("config", "line"),
    [
        pytest.param(
            replace(DEFAULTS, node_name="n", fast_path="off"),
            "settings: no socket LB, fast path off, no XDP, masquerade ports 10000-29999",
            id="nothing",
        ),
        pytest.param(
            replace(
                DEFAULTS,
                node_name="n",
                cgroup_root=Path("/cg"),
                xdp=("auto",),
            ),
            "settings: socket LB for the node and its pods, fast path auto, XDP on auto,"
            " masquerade ports 10000-29999",
            id="everything",
        ),
        pytest.param(
            replace(
                DEFAULTS,
                node_name="n",
                cgroup_root=Path("/cg"),
                socket_lb="host",
                xdp=("eth0", "eth1"),
            ),
            "settings: socket LB for the node, fast path auto, XDP on eth0,eth1,"
            " masquerade ports 10000-29999",
            id="some",
        ),
        pytest.param(
            replace(DEFAULTS, node_name="n", scheduler=Scheduler("sh", ("sh-port",))),
            "settings: no socket LB, fast path auto, no XDP, masquerade ports 10000-29999,"
            " scheduler sh,sh-port",
            id="a scheduler",
        ),
    ],
)
def test_the_second_line_names_the_features_that_are_on(config: Config, line: str) -> None:
    _, second = start_lines(config)
    assert second == line


@pytest.mark.parametrize(
    ("services", "attached", "with_xdp", "line"),
    [
        (1, [], [], "ready: 1 Service in the kernel after 0.25 s; attached to no interface"),
        (
            6,
            ["eth0", "veth-1"],
            ["eth0"],
            "ready: 6 Services in the kernel after 0.25 s; attached to eth0, veth-1; XDP on eth0",
        ),
    ],
)
def test_the_end_of_the_start_is_one_line(
    services: int, attached: list[str], with_xdp: list[str], line: str
) -> None:
    assert ready_line(services, 0.25, attached, with_xdp) == line


def test_a_node_with_hundreds_of_pods_has_a_short_line() -> None:
    line = ready_line(1, 0.25, [f"veth{index}" for index in range(200)], [])
    assert line.endswith(", veth15 and 184 more")
