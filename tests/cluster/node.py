"""A node: its namespaces, its disk, its containerd and kubelet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.patience import wait
from tests.cluster import cgroups, node_files
from tests.cluster.addresses import POD_CIDRS, Host
from tests.cluster.certificates import Certificates
from tests.cluster.cgroups import hierarchies
from tests.cluster.errors import ClusterError
from tests.cluster.node_process import Description
from tests.cluster.processes import Processes
from tests.cluster.settings import CHECKOUT, Settings

_CNI_PROGRAMS = Path("/usr/lib/cni")
_ZONE = "topology.kubernetes.io/zone"
_KUBECONFIG = "/etc/kubernetes/kubelet.conf"


class Node:
    """One machine of the cluster. Its files are in ``folder``, its own disk in ``folder/disk``."""

    def __init__(self, host: Host, settings: Settings, processes: Processes) -> None:
        self.host = host
        self.name = host.name
        self.settings = settings
        self.folder = settings.state / host.name
        self._processes = processes
        self._cgroup = settings.prefix + host.name

    # -- its life -----------------------------------------------------------------------------

    def start(self, certificates: Certificates) -> None:
        """Start the machine; its kubelet registers by itself."""
        self._write_files(certificates)
        cgroups.make(self._cgroup, hierarchies())
        (self.folder / "number").unlink(missing_ok=True)
        launcher = f"{self.name}-start"
        self._processes.start(
            launcher,
            [sys.executable, "-m", "tests.cluster.node_process", self.folder],
            environment={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        )
        number = self.folder / "number"

        def begun() -> bool:
            ended = self._processes.number(launcher) is None
            if ended and not number.exists():
                log = self._processes.log(launcher)
                last = log.read_text().strip().rpartition("\n")[2]
                raise ClusterError(f"node {self.name} does not start: {last}", f"see {log}")
            return ended

        wait(begun, f"the start of node {self.name}", 30)
        self._processes.record(self.name, int(number.read_text()))

    def stop(self) -> None:
        """End the machine at once with all that runs on it, and remove its disk."""
        self._processes.stop(self.name, kill=True)
        cgroups.remove(self._cgroup, hierarchies())
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_files(self, certificates: Certificates) -> None:
        kubernetes = self.folder / "disk" / "etc" / "kubernetes"
        kubernetes.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.settings.kubeconfig, kubernetes / Path(_KUBECONFIG).name)
        shutil.copy(certificates.authority, kubernetes / "ca.crt")
        shutil.copytree(_CNI_PROGRAMS, self.folder / "disk/opt/cni/bin", dirs_exist_ok=True)
        resolv_conf = self.folder / "resolv.conf"
        resolv_conf.write_text(node_files.RESOLV_CONF)
        (self.folder / "containerd.toml").write_text(node_files.containerd(self.settings.cgroups))
        (self.folder / "kubelet.yaml").write_text(node_files.kubelet(resolv_conf))
        Description(
            name=self.name,
            namespace=str(sandbox.NETNS_ROOT / (self.settings.prefix + self.name)),
            cgroup=self._cgroup,
            cgroups=self.settings.cgroups,
            kubelet=[
                str(self.settings.bin / "kubelet"),
                f"--config={self.folder / 'kubelet.yaml'}",
                f"--kubeconfig={_KUBECONFIG}",
                f"--hostname-override={self.name}",
                f"--node-ip={','.join(map(str, self.host.addresses))}",
                f"--node-labels={_ZONE}={self.host.zone}",
            ],
        ).save(self.folder)

    # -- on it --------------------------------------------------------------------------------

    def enter(self, command: Sequence[str | os.PathLike[str]]) -> list[str]:
        """Return the command that runs another one on this node."""
        number = self._processes.number(self.name)
        if number is None:
            raise ClusterError(f"node {self.name} does not run", "start the cluster anew")
        spaces = ("--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup")
        return [
            "nsenter",
            f"--target={number}",
            *spaces,
            "--",
            *[os.fspath(word) for word in command],
        ]

    def popen(
        self, command: Sequence[str | os.PathLike[str]], **options: Any
    ) -> subprocess.Popen[str]:
        """Start a process on this node, in its cgroup too; options are those of ``Popen``."""
        cgroup, among = self._cgroup, hierarchies()
        return subprocess.Popen(
            self.enter(command),
            text=True,
            preexec_fn=lambda: cgroups.enter(cgroup, among),
            **options,
        )

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        check: bool = True,
        stdin: str | None = None,
        timeout: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this node to its end; ``ClusterError`` if it fails and ``check``."""
        pipe = subprocess.PIPE
        with self.popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
            try:
                output, errors = process.communicate(stdin, timeout)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode != 0:
            words = " ".join(map(str, command))
            raise ClusterError(
                f"{self.name}: {words} ended with {process.returncode}: {errors.strip()}"
            )
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def add_image(self, archive: Path) -> None:
        """Put the images of an OCI archive on this node."""
        self.run(["ctr", "--namespace=k8s.io", "images", "import", archive])

    def configure_pods(self, pod_cidrs: list[str]) -> None:
        """Write the CNI's configuration, with which the node becomes ready."""
        self.run(["nft", "-f", "-"], stdin=node_files.masquerade(POD_CIDRS))
        folder = self.folder / "disk" / "etc" / "cni" / "net.d"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "10-pods.conflist").write_text(node_files.cni(self.settings.cni, pod_cidrs))
