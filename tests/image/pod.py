"""Pods of a DaemonSet, run by podman as a kubelet would run them.

Mounts, their propagation, capabilities, the root file system, arguments and environment come from
the rendered DaemonSet, so the test runs exactly what the manifest says. A container shares the
network of the process that starts it, as ``hostNetwork`` says, and the machine is one with cgroup
v2 whose mounts are shared, as systemd leaves them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bpfsvc.base import syscalls
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.namespace import Process
from bpfsvc.devtools.lab.node import LabNode

Object = dict[str, Any]

STORAGE = Path(os.environ.get("BPFSVC_IMAGE", "build/image")).resolve()
"""The output of ``build.sh``."""

LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
"""By default podman sets higher limits than it may set everywhere."""

_TOKENS = "/var/run/secrets/kubernetes.io/serviceaccount"
_CGROUPS = Path("/sys/fs/cgroup")
_PROPAGATION = {"Bidirectional": "rshared", "HostToContainer": "rslave", "None": "rprivate"}


def podman(*words: str) -> list[str]:
    """Return a command of podman. It uses programs of the machine, but nothing else of it."""
    return [
        "podman",
        "--log-level=error",
        *("--storage-driver", "vfs", "--root", str(STORAGE / "storage")),
        *("--runroot", str(STORAGE / "run"), "--tmpdir", str(sandbox.ROOT / "podman")),
        *("--cgroup-manager", "cgroupfs", "--runtime", "runc", "--events-backend", "none"),
        *words,
    ]


def become_machine() -> None:
    """Make the mounts of a usual node in the sandbox's own namespace."""
    sandbox.require()
    syscalls.unmount(str(_CGROUPS))
    syscalls.mount("cgroup2", str(_CGROUPS), "cgroup2")
    subprocess.run(["mount", "--make-rshared", "/"], check=True)


class Pod:
    """The pod of a DaemonSet on one node.

    ``volumes``: directories for ConfigMaps, the token, and paths of the host other than those of
    the kernel; the keys are the names of ConfigMaps, ``token``, and the paths.
    """

    def __init__(self, daemon_set: Object, node: LabNode, volumes: Mapping[str, Path]) -> None:
        self.name = daemon_set["metadata"]["name"]
        self.spec: Object = daemon_set["spec"]["template"]["spec"]
        self.node = node
        self.volumes = volumes
        self._volumes = {volume["name"]: self._place(volume) for volume in self.spec["volumes"]}

    def prepare(self, log: Path) -> None:
        """Run the init containers, one after the other."""
        for container in self.spec["initContainers"]:
            with log.open("ab") as output:
                process = self.start(container, output)
            status = process.wait(120)
            assert status == 0, f"{container['name']} ended with {status}:\n{log.read_text()}"

    def start(self, container: Object, output: Any) -> Process:
        """Start a container; the process ends with it and hands signals on to it."""
        return self.node.popen(self.command(container), stdout=output, stderr=output)

    def command(self, container: Object) -> list[str]:
        """Return the command of podman for a container."""
        entrypoint = container.get("command")
        return podman(
            *("run", "--rm", "--pull=never", "--name", self.label(container)),
            *("--network=host", "--pids-limit=-1", "--log-driver=none"),
            *LIMITS,
            *self._security(container.get("securityContext", {})),
            *self._mounts(container.get("volumeMounts", ())),
            *(f"--env={each['name']}={self._value(each)}" for each in container.get("env", ())),
            *(("--entrypoint", json.dumps(entrypoint)) if entrypoint else ()),
            container["image"],
            *(self._expanded(word) for word in container.get("args", ())),
        )

    def label(self, container: Object) -> str:
        """Return the name a container has for podman."""
        return f"{self.name}-{self.node.name}-{container['name']}"

    def _security(self, context: Object) -> list[str]:
        words = ["--read-only", "--read-only-tmpfs=false"]
        if not context.get("readOnlyRootFilesystem"):
            words = []
        if context.get("privileged"):
            return [*words, "--privileged"]
        assert self.spec["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
        words += ["--security-opt=seccomp=unconfined"]
        if context.get("allowPrivilegeEscalation") is False:
            words += ["--security-opt=no-new-privileges"]
        changes = context["capabilities"]
        words += [f"--cap-drop={name}" for name in changes.get("drop", ())]
        return [*words, *(f"--cap-add={name}" for name in changes.get("add", ()))]

    def _mounts(self, mounts: Sequence[Object]) -> list[str]:
        words = []
        for mount in mounts:
            options = [_PROPAGATION[mount.get("mountPropagation", "None")]]
            options += ["ro"] if mount.get("readOnly") else []
            source = self._volumes[mount["name"]]
            if source is None:
                words.append(f"--tmpfs={mount['mountPath']}")
            else:
                words.append(f"--volume={source}:{mount['mountPath']}:{','.join(options)}")
        if self.spec.get("automountServiceAccountToken", True):
            words.append(f"--volume={self.volumes['token']}:{_TOKENS}:ro")
        return words

    def _place(self, volume: Object) -> Path | None:
        """Return the directory of a volume; None for one that is empty."""
        if "hostPath" in volume:
            path = volume["hostPath"]["path"]
            return Path(path) if path.startswith("/sys/") else self.volumes[path]
        return self.volumes[volume["configMap"]["name"]] if "configMap" in volume else None

    def _value(self, variable: Object) -> str:
        if "valueFrom" in variable:
            assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
            return self.node.name
        return str(variable["value"])

    def _expanded(self, word: str) -> str:
        return word.replace("$(NODE_NAME)", self.node.name)
