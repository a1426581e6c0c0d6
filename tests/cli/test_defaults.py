"""Options that are not given have the values of the agent that runs here."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bpfsvc.base import local_socket
from bpfsvc.cli import status as status_command
from bpfsvc.cli.main import main
from bpfsvc.config.bpfsvc_v1alpha1 import DEFAULT_PIN_ROOT
from bpfsvc.config.documents import of_agent
from bpfsvc.config.fields import Flag
from bpfsvc.config.loading import CommandLine, load
from bpfsvc.inspect import agent_configuration
from bpfsvc.inspect.agent_configuration import usual_pin_root
from bpfsvc.migration.kube_proxy import running
from bpfsvc.model.answers import AgentConfiguration

MANY = [Path("/sys/fs/bpf/one"), Path("/sys/fs/bpf/two")]


def test_the_health_address_is_the_agents_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[object] = []
    documents = {"kubeproxy.config.k8s.io": {"healthzBindAddress": "127.0.0.1:20256"}}
    agent = AgentConfiguration(
        version="1", process=1, arguments=[], node_name="node-1", documents=documents
    )
    monkeypatch.setattr(agent_configuration, "ask_configuration", lambda _: agent)
    monkeypatch.setattr(status_command, "collect_status", lambda _, healthz: asked.append(healthz))
    for words in ([], ["--healthz-bind-address", "127.0.0.1:1"], ["--healthz-bind-address", ""]):
        CliRunner().invoke(main, ["status", "--pin-root", str(tmp_path), *words])
    assert asked == [("127.0.0.1", 20256), ("127.0.0.1", 1), None]


@pytest.mark.parametrize(
    ("running_here", "expected"),
    [([], DEFAULT_PIN_ROOT), (MANY[:1], MANY[0]), (MANY, DEFAULT_PIN_ROOT)],
    ids=["without an agent", "beside an agent", "beside several"],
)
def test_the_pin_root_is_that_of_the_only_agent(
    monkeypatch: pytest.MonkeyPatch, running_here: list[Path], expected: Path
) -> None:
    monkeypatch.setattr(agent_configuration, "pin_roots", lambda: running_here)
    assert usual_pin_root() == expected


def test_agents_are_known_by_the_names_of_their_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "Num RefCount Protocol Flags Type St Inode Path\n" + "".join(
        f"0: 00000002 00000000 00010000 0001 01 {number} {name}\n"
        for number, name in enumerate(["@bpfsvc:/b", "@bpfsvc:/a", "@bpfsvc:/b", "@other", ""])
    )
    monkeypatch.setattr(Path, "read_text", lambda _: lines)
    assert local_socket.pin_roots() == [Path("/a"), Path("/b")]


def test_flags_win_over_the_documents_of_the_agent() -> None:
    agents = load(
        CommandLine(
            kubeproxy=(Flag("--cluster-cidr", ("clusterCIDR",), "10.244.0.0/16"),),
            bpfsvc=(Flag("--cgroup-root", ("cgroupRoot",), "/host/cgroup"),),
            names={},
        )
    )
    given = CommandLine(bpfsvc=(Flag("--cgroup-root", ("cgroupRoot",), "none"),), names={})
    both = load(given, beneath=of_agent(agents.plain()))
    assert both.kubeproxy == agents.kubeproxy
    assert both.bpfsvc.cgroup_root == "none"


@pytest.mark.parametrize(
    ("processes", "sees"),
    [
        ({1: "systemd", 2: "kthreadd"}, True),
        ({1: "systemd", 2: "journald", 80: "kubelet"}, True),
        ({1: "bpfsvc", 2: "sh"}, False),
    ],
    ids=["on a machine", "on a node that is a container", "in a container"],
)
def test_the_nodes_processes_are_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, processes: dict[int, str], sees: bool
) -> None:
    for number, name in processes.items():
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
    monkeypatch.setattr(running, "_PROC", tmp_path)
    assert running._sees_node() is sees
