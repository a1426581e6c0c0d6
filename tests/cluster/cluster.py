"""The cluster as its tests see it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bpfsvc.devtools.lab.netns import NetworkNamespace
from bpfsvc.devtools.lab.patience import wait
from tests.cluster import images, network, product, programs
from tests.cluster.addresses import API, NODES
from tests.cluster.aside import Aside
from tests.cluster.cgroups import of_machine
from tests.cluster.control_plane import ControlPlane
from tests.cluster.errors import ClusterError
from tests.cluster.kube_proxy import Mode, kube_proxy_config, kube_proxy_manifest
from tests.cluster.node import Node
from tests.cluster.processes import Processes
from tests.cluster.settings import CHECKOUT, OVERLAYS, Overlay, Proxy, Settings

_READY_SECONDS = 180
_DNS = Path(__file__).with_name("manifests") / "dns.yaml"

Command = Sequence[str | os.PathLike[str]]


class Cluster:
    """A cluster that is up, or is to come up.

    ``nodes``: by name. ``settings``: its folders, among others. ``results``: the folder for what
    tests leave; it stays when the cluster ends.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.results = settings.folder / "results"
        self.processes = Processes(settings.state / "processes")
        self.control_plane = ControlPlane(settings, self.processes)
        self.nodes = {host.name: Node(host, settings, self.processes) for host in NODES}

    @staticmethod
    def in_folder(folder: Path) -> Cluster:
        """Return the cluster that is up in a folder; ``ClusterError`` if there is none."""
        return Cluster(Settings.saved(folder))

    # -- its life -----------------------------------------------------------------------------

    def up(self, proxy: Proxy = "none", *, build: bool = True) -> None:
        """Start the cluster; its nodes and what serves Services are ready when this returns.

        ``proxy``: bpfsvc by one of its overlays, kube-proxy, or nothing. ``build``: False if the
        image of bpfsvc in the cluster's folder will do.
        """
        self._require_none()
        programs.collect(self.settings.kubernetes, self.settings.bin)
        self.settings.save()
        self.results.mkdir(exist_ok=True)
        network.build(self.settings.prefix)
        overlay = next((each for each in OVERLAYS if each == proxy), None)
        with ExitStack() as stack:
            folder = str(self.settings.folder)
            made = stack.enter_context(Aside("images", folder))
            builds = bool(overlay) and build
            built = stack.enter_context(Aside("bpfsvc-image", folder)) if builds else None
            self.control_plane.start()
            self._start_dns()
            for node in self.nodes.values():
                node.start(self.control_plane.certificates)
            self._configure_pods()
            made.wait()
            for archive in images.archives(self.settings):
                self.add_image(archive)
            if built:
                built.wait()
            if overlay:
                self.add_image(self.settings.folder / product.ARCHIVE)
        self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=180s")
        if overlay:
            self.deploy_bpfsvc(overlay)
        elif proxy == "kube-proxy":
            self.start_kube_proxy()

    def _start_dns(self) -> None:
        self._start_module("dns", str(API.v4))
        self.apply(_DNS.read_text())

    def start_balancer(self) -> None:
        """Start a load balancer, which gives Services of type LoadBalancer their addresses."""
        self._start_module("balancer")

    def stop_balancer(self) -> None:
        """End the load balancer; its routes stay."""
        self.processes.stop("balancer")

    def _start_module(self, name: str, *words: str) -> None:
        """Start a module of this package on ``api``, with a kubeconfig."""
        namespace = NetworkNamespace(API.name, prefix=self.settings.prefix)
        self.processes.start(
            name,
            [sys.executable, "-m", f"tests.cluster.{name}", self.settings.kubeconfig, *words],
            namespace=namespace,
            environment={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        )
        namespace.release()

    def _require_none(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("a cluster needs root", "run the command as root")
        if self.settings.cgroups == "hybrid" and of_machine() == "unified":
            raise ClusterError("this machine has nothing but cgroup2", "use --cgroups unified")
        folder, prefix = self.settings.folder, self.settings.prefix
        if self.settings.is_saved:
            raise ClusterError(f"a cluster is up in {folder} already", "end it: make cluster-down")
        for name in network.NAMES:
            if network.exists(prefix + name):
                raise ClusterError(
                    f"a namespace {prefix + name} exists: another cluster has the prefix {prefix}",
                    "give another one: --prefix",
                )

    def down(self) -> None:
        """End everything that was started, whatever there is; programs, images, results stay.

        A cluster that was refused has started nothing: what has its names is another one's.
        """
        if not self.settings.is_saved:
            return
        with ThreadPoolExecutor() as pool:
            list(pool.map(Node.stop, self.nodes.values()))
        self.control_plane.stop()
        for name in self.processes.names():
            self.processes.stop(name)
        network.remove(self.settings.prefix)
        shutil.rmtree(self.settings.state, ignore_errors=True)

    def _configure_pods(self) -> None:
        pod_cidrs: dict[str, list[str]] = {}

        def assigned() -> bool:
            for item in self.get("nodes"):
                cidrs = item["spec"].get("podCIDRs", [])
                if len(cidrs) == 2:
                    pod_cidrs[item["metadata"]["name"]] = cidrs
            return pod_cidrs.keys() == self.nodes.keys()

        logs = self.settings.state / "n1" / "kubelet.log"
        wait(assigned, f"all nodes have ranges for pods ({logs})", _READY_SECONDS)
        network.route_pods(self.settings.prefix, pod_cidrs)
        for name, node in self.nodes.items():
            node.configure_pods(pod_cidrs[name])

    def add_image(self, archive: Path) -> None:
        """Put the images of an OCI archive on all nodes."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.add_image(archive), self.nodes.values()))

    # -- on it --------------------------------------------------------------------------------

    @contextmanager
    def inside(self, name: str = API.name) -> Iterator[None]:
        """Move the calling thread into the network namespace of a machine, and back.

        ``name``: a node's, ``api`` (the clients of e2e tests run there) or ``outside``.
        """
        namespace = NetworkNamespace(name, prefix=self.settings.prefix)
        try:
            with namespace.entered():
                yield
        finally:
            namespace.release()

    def popen(
        self, command: Command, *, on: str = API.name, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a process on ``api``, ``outside`` or a node; options are those of ``Popen``."""
        if on in self.nodes:
            return self.nodes[on].popen(command, **options)
        with self.inside(on):
            return subprocess.Popen(command, text=True, **options)

    def enter(self, node: str, command: Command, **options: Any) -> str:
        """Run a command on a node and return its output; options are those of ``Node.run``."""
        return self.nodes[node].run(command, **options).stdout

    def kubectl_words(self, *words: str) -> list[str]:
        """Return kubectl's command line, for ``popen``."""
        program = self.settings.bin / "kubectl"
        return [str(program), f"--kubeconfig={self.settings.kubeconfig}", *words]

    def kubectl(self, *words: str, stdin: str | None = None, timeout: float | None = None) -> str:
        """Run kubectl and return its output; ``ClusterError`` with its words if it fails."""
        with self.inside():
            done = subprocess.run(
                self.kubectl_words(*words),
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout,
            )
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip()
            raise ClusterError(f"kubectl {' '.join(words)}: {said}")
        return done.stdout

    def get(self, kind: str, *words: str) -> list[dict[str, Any]]:
        """Return objects as the API server has them: ``get("pods", "--all-namespaces")``."""
        text = self.kubectl("get", kind, *words, "-o", "json")
        items: list[dict[str, Any]] = json.loads(text)["items"]
        return items

    def apply(self, manifest: str) -> None:
        """Apply objects in YAML."""
        self.kubectl("apply", "-f", "-", stdin=manifest)

    def rolled_out(self, kind: str, name: str, namespace: str = "default") -> None:
        """Wait until a Deployment or DaemonSet is complete."""
        self.kubectl(
            *("--namespace", namespace, "rollout", "status"),
            *(f"{kind}/{name}", f"--timeout={_READY_SECONDS}s"),
        )

    # -- proxies ------------------------------------------------------------------------------

    def build_bpfsvc(self) -> None:
        """Build bpfsvc's image from the checkout and put it on all nodes."""
        self.add_image(product.build_image(self.settings))

    def deploy_bpfsvc(
        self, overlay: Overlay = "plain", flags: Sequence[str] = (), like_kube_proxy: bool = False
    ) -> None:
        """Apply an overlay, changed as its documents say, and wait until all agents are ready.

        ``flags`` and ``like_kube_proxy``: as for ``product.overlay_folder``.
        """
        if overlay == "kubeadm" and not self._has_kube_proxy_config():
            self.apply(kube_proxy_config())
        if overlay == "k3s":
            self._start_forwarders()
        self.apply(self._overlay(overlay, flags, like_kube_proxy))
        self.rolled_out("daemonset", "bpfsvc", "kube-system")

    def _has_kube_proxy_config(self) -> bool:
        listed = self.get("configmaps", "--namespace=kube-system")
        return any(entry["metadata"]["name"] == "kube-proxy" for entry in listed)

    def _start_forwarders(self) -> None:
        """Have the API server on every node, where k3s has it."""
        for node in self.nodes.values():
            name = f"{node.name}-forwarder"
            if self.processes.number(name) is None:
                command = [sys.executable, "-m", "tests.cluster.forwarder"]
                environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
                self.processes.start(name, node.enter(command), environment=environment)

    def remove_bpfsvc(self, overlay: Overlay = "plain") -> None:
        """Delete an overlay's objects; what the agents left on the nodes stays."""
        self.kubectl(
            *("delete", "--ignore-not-found", "--wait", "-f", "-"), stdin=self._overlay(overlay)
        )

    def _overlay(
        self, overlay: Overlay, flags: Sequence[str] = (), like_kube_proxy: bool = False
    ) -> str:
        folder = product.overlay_folder(self.settings, overlay, flags, like_kube_proxy)
        return self.kubectl("kustomize", str(folder))

    def start_kube_proxy(self, mode: Mode = "nftables") -> None:
        """Start the real kube-proxy as kubeadm does, and wait until it is ready."""
        self.apply(kube_proxy_manifest(mode))
        self.rolled_out("daemonset", "kube-proxy", "kube-system")

    def stop_kube_proxy(self, mode: Mode = "nftables") -> None:
        """Delete kube-proxy's objects; its rules stay on the nodes."""
        self.kubectl(
            *("delete", "--ignore-not-found", "--wait", "-f", "-"), stdin=kube_proxy_manifest(mode)
        )
