"""The image, run on a node of the lab as the DaemonSet of ``deploy/`` says, against an API server.

``make image image-compiler`` comes first. The overlay is that of k3s, because nothing in it has to
be replaced: the API server is at 127.0.0.1:6444, as on every node of k3s.
"""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from bpfsvc.config.bpfsvc_v1alpha1 import DEFAULT_MASQUERADE_PORTS, DEFAULT_PIN_ROOT
from bpfsvc.datapath.maps.pins import is_bpffs
from bpfsvc.devtools.lab import objects as kubernetes
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.cluster import LabAgent
from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.load import Kind, Load
from bpfsvc.devtools.lab.namespace import LabError, Namespace
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.topology import Lab
from tests.apiserver.fixtures import Certificates, certificates
from tests.deploy.kustomize import build
from tests.deploy.rendered import DEPLOY, only, overlay
from tests.image.parts import LIMIT, measure
from tests.image.pod import LIMITS, STORAGE, Pod, become_machine, podman
from tests.lab.testbed import WEB, objects

__all__ = ["certificates"]

TOKEN = "good"

CAPABILITIES = {
    "NET_ADMIN": 12,
    "NET_RAW": 13,
    "SYS_PTRACE": 19,
    "PERFMON": 38,
    "BPF": 39,
}
"""Capabilities and their numbers in linux/capability.h."""


class Machine(NamedTuple):
    """A node whose agent is a container, and its API server."""

    lab: Lab
    pod: Pod
    api: ApiServer
    log: Path
    """The log of init containers. Agents have separate logs beside it."""

    @property
    def node(self) -> LabNode:
        """The node."""
        return self.lab.nodes[0]

    def start(self, *args: str, image: str = "") -> LabAgent:
        """Start a pod as a kubelet does: init containers first; wait until it is ready."""
        agent = self.launch(*args, image=image)
        agent.ready(120)
        return agent

    def launch(self, *args: str, image: str = "") -> LabAgent:
        """Start a pod without waiting; ``args``: further ones, ``image``: in place of its own."""
        self.pod.prepare(self.log)
        (container,) = self.pod.spec["containers"]
        changed = {"args": [*container["args"], *args], "image": image or container["image"]}
        number = len(list(self.log.parent.glob("agent-*")))
        return LabAgent(
            self.node,
            self.pod.command({**container, **changed}),
            self.log.parent / f"agent-{number}",
        )

    def bpfsvc(self, *words: str) -> str:
        """Run a command in the container, as ``kubectl exec`` does."""
        (container,) = self.pod.spec["containers"]
        exec_ = podman("exec", self.pod.label(container), "bpfsvc", *words)
        return self.node.run(exec_).stdout

    def status_of_agent(self, field: str) -> str:
        """Return a field of the agent's ``/proc/PID/status``."""
        (container,) = self.pod.spec["containers"]
        told = podman("inspect", "--format", "{{.State.Pid}}", self.pod.label(container))
        number = self.node.run(told).stdout.strip()
        lines = Path("/proc", number, "status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines)[field].strip()

    def end(self, agent: LabAgent, number: signal.Signals) -> None:
        """End the container by a signal, and wait until it is gone."""
        (container,) = self.pod.spec["containers"]
        kill = podman("kill", "--signal", number.name, self.pod.label(container))
        self.node.run(kill)
        agent.process.wait(stretched(20))


@pytest.fixture(scope="module")
def machine(certificates: Certificates) -> Iterator[Machine]:
    """A lab of two nodes; the first has all that a kubelet provides."""
    become_machine()
    path = Path(tempfile.mkdtemp(prefix="image-", dir=sandbox.ROOT))
    for name in ("config", "token", "state"):
        (path / name).mkdir()
    manifests = overlay("k3s")
    for name, text in only(manifests, "ConfigMap")["data"].items():
        (path / "config" / name).write_text(text)
    (path / "token" / "token").write_text(TOKEN)
    shutil.copy(certificates.ca, path / "token" / "ca.crt")
    volumes = {
        "bpfsvc": path / "config",
        "token": path / "token",
        "/var/lib/bpfsvc": path / "state",
        "/run/xtables.lock": path / "xtables.lock",
    }
    volumes["/run/xtables.lock"].touch()
    with (
        Lab("bridge") as lab,
        ApiServer(
            certificate=certificates.server,
            key=certificates.server_key,
            tokens=frozenset({TOKEN}),
        ) as api,
    ):
        lab.serve()
        node = lab.nodes[0]
        listener = node.socket(socket.AF_INET)
        listener.bind(("127.0.0.1", 6444))
        api.serve(listener)
        for manifest in (
            kubernetes.node(node.name, node.addresses.values()),
            *objects(WEB, lab.pods),
        ):
            api.put(manifest)
        yield Machine(lab, Pod(only(manifests, "DaemonSet"), node, volumes), api, path / "log")
        for log in (path / "log", *sorted(path.glob("agent-*"))):
            print(f"\n--- {log.name} ---\n{log.read_text()}")
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def agent(machine: Machine) -> Iterator[LabAgent]:
    """The agent of the first node, running in a container."""
    agent = machine.start()
    yield agent
    if agent.process.poll() is None:
        agent.end()


def test_the_container_balances_for_pods_the_node_and_clients(
    machine: Machine, agent: LabAgent
) -> None:
    """With the capabilities, mounts and read-only root of the manifest, and nothing more."""
    for place, address, number in (
        (machine.lab.pods[0], WEB.vip(4), 80),
        (machine.lab.pods[0], WEB.vip(6), 80),
        (machine.node, WEB.vip(4), 80),
        (machine.node, machine.node.address(6), WEB.node_port),
        (machine.lab.client, machine.node.address(4), WEB.node_port),
    ):
        assert ask(place, address, number).pod in {pod.name for pod in machine.lab.pods}
    print(f"\n{machine.bpfsvc('status')}")
    assert agent.health().status == 200


def test_the_agent_has_the_capabilities_of_the_manifest_and_no_others(
    machine: Machine, agent: LabAgent
) -> None:
    """The kernel reports them for the running process."""
    add = machine.pod.spec["containers"][0]["securityContext"]["capabilities"]["add"]
    wanted = sum(1 << CAPABILITIES[name] for name in add)
    assert machine.status_of_agent("CapEff") == f"{wanted:016x}"
    assert machine.status_of_agent("CapBnd") == f"{wanted:016x}"
    assert machine.status_of_agent("NoNewPrivs") == "1"
    assert agent.health().status == 200


def test_the_effects_of_the_init_container_last(machine: Machine, agent: LabAgent) -> None:
    """The bpf file system is mounted on the node, and the masquerade ports are reserved."""
    assert is_bpffs(DEFAULT_PIN_ROOT)
    assert machine.node.sysctl("net.ipv4.ip_local_reserved_ports") == str(DEFAULT_MASQUERADE_PORTS)
    assert agent.health().status == 200


def test_the_agent_stays_small(machine: Machine, agent: LabAgent) -> None:
    """Its resident memory is below what the manifest requests."""
    resident = int(machine.status_of_agent("VmRSS").split()[0]) // 1024
    requests = machine.pod.spec["containers"][0]["resources"]["requests"]
    print(f"\nresident: {resident} MiB, requested: {requests['memory']}")
    assert resident < int(requests["memory"].removesuffix("Mi"))
    assert agent.health().status == 200


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL], ids=["a rolling update", "kill -9"]
)
def test_a_replaced_container_loses_no_request(
    machine: Machine, agent: LabAgent, number: signal.Signals
) -> None:
    """A container ends and another replaces it while traffic flows, without one failure."""
    with loaded(machine) as loads:
        machine.end(agent, number)
        for load in loads:
            load.more(20)
        fresh = machine.start()
        for load in loads:
            load.more(20)
    agent.process = fresh.process


def test_the_image_has_the_tools_for_inspection_and_cleanup(
    machine: Machine, agent: LabAgent
) -> None:
    """The programs that see netfilter's tables, privileged as `kubectl debug` makes them."""
    debug = ["run", "--rm", "--pull=never", "--network=host", "--pids-limit=-1", "--privileged"]
    image = machine.pod.spec["containers"][0]["image"]
    looking = podman(*debug, *LIMITS, image, "cleanup", "--kube-proxy", "--dry-run")
    done = machine.node.run(looking)
    assert done.stdout == "nothing of kube-proxy is left here\n"
    assert "not installed" not in done.stderr
    assert agent.health().status == 200


def test_the_image_has_no_shell(machine: Machine, agent: LabAgent) -> None:
    (container,) = machine.pod.spec["containers"]
    for program in ("sh", "bash", "dash", "busybox"):
        asked = podman("exec", machine.pod.label(container), program, "-c", "true")
        with pytest.raises(LabError, match="executable file"):
            machine.node.run(asked)
    assert agent.health().status == 200


def test_the_image_without_a_compiler_has_less_than_60_mb() -> None:
    image = measure(STORAGE)
    assert image.total < LIMIT, image.parts.most_common()


def test_endpoints_follow_the_api_server(machine: Machine, agent: LabAgent) -> None:
    """After all that, a change at the server changes the endpoint that answers."""
    last = machine.lab.pods[-1]
    for manifest in objects(WEB, [last]):
        machine.api.put(manifest)
    wait(
        lambda: {ask(machine.lab.pods[0], WEB.vip(4), 80).pod for _ in range(8)} == {last.name},
        "only the last pod answers",
    )
    assert agent.health().status == 200


def test_the_image_has_no_compiler_and_its_agents_have_compiled_nothing(
    machine: Machine, agent: LabAgent
) -> None:
    assert "compil" not in agent.log
    assert not (machine.log.parent / "state" / "cache").exists()
    (container,) = machine.pod.spec["containers"]
    code = "import importlib.util as found; print(found.find_spec('bcc'))"
    asked = podman("exec", machine.pod.label(container), "python", "-c", code)
    assert machine.node.run(asked).stdout == "None\n"


NOT_FITTING = ("--max-services=1000", "--cache=none", "--programs=/tmp")
"""Another build is to be loaded, and there are no compiled programs that others cannot write."""


def test_what_the_programs_do_not_fit_takes_the_image_with_a_compiler(
    machine: Machine, agent: LabAgent
) -> None:
    """The error of the image without one says so; the programs in the kernel go on meanwhile."""
    machine.end(agent, signal.SIGTERM)
    without = machine.launch(*NOT_FITTING)
    assert without.process.wait(stretched(60)) == 1
    assert "others may write to /tmp" in without.log
    assert "use the image of this version whose name ends with -compiler" in without.log
    (container,) = machine.pod.spec["containers"]
    name, version = container["image"].split(":")
    fresh = machine.start(*NOT_FITTING, image=f"{name}-compiler:{version}")
    assert "compiling anew: " in fresh.log
    assert ask(machine.lab.pods[0], WEB.vip(4), 80).pod in {pod.name for pod in machine.lab.pods}
    machine.end(fresh, signal.SIGTERM)
    agent.process = machine.start().process


def test_removal_leaves_nothing(machine: Machine, agent: LabAgent) -> None:
    """The DaemonSet of deploy/removal, after the agent's has been deleted."""
    machine.end(agent, signal.SIGTERM)
    removal = Pod(only(build(DEPLOY / "removal"), "DaemonSet"), machine.node, machine.pod.volumes)
    removal.prepare(machine.log)
    assert not DEFAULT_PIN_ROOT.exists()
    assert "released the reserved ports" in machine.log.read_text()
    with pytest.raises(OSError, match=r".*"):
        ask(machine.lab.pods[0], WEB.vip(4), 80, timeout=0.5)


@contextmanager
def loaded(machine: Machine) -> Iterator[list[Load]]:
    """Keep up load of every kind; at the end, none may have failed."""
    lab, node = machine.lab, machine.node
    wanted: tuple[tuple[Namespace, Kind, str, int], ...] = (
        (lab.pods[0], "connect", WEB.vip(4), 80),
        (lab.pods[0], "stream", WEB.vip(6), 80),
        (lab.pods[0], "datagram", WEB.vip(4), 80),
        (node, "connect", WEB.vip(6), 80),
        (lab.client, "connect", node.address(4), WEB.node_port),
        (lab.client, "stream", node.address(6), WEB.node_port),
    )
    loads = [
        place.load(kind, address, number, seconds=120, interval=0.02)
        for place, kind, address, number in wanted
    ]
    for load in loads:
        load.more(20)
    yield loads
    for load in loads:
        load.more(20)
    done = [load.stop() for load in loads]
    print(f"\n{sum(each.ok for each in done)} requests, {sum(each.failed for each in done)} failed")
    assert [each.examples for each in done if each.failures] == []
