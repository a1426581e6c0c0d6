"""What a cluster was started with. Kept in its folder, where the later commands find it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from tests.cluster.cgroups import Cgroups, of_machine
from tests.cluster.errors import ClusterError

Cni = Literal["bridge", "ptp"]
Overlay = Literal["plain", "kubeadm", "k3s"]
Proxy = Overlay | Literal["kube-proxy", "none"]

CNIS: tuple[Cni, ...] = get_args(Cni)
OVERLAYS: tuple[Overlay, ...] = get_args(Overlay)
PROXIES: tuple[Proxy, ...] = (*OVERLAYS, "kube-proxy", "none")

CHECKOUT = Path(__file__).parents[2]
FOLDER = CHECKOUT / "build" / "cluster"
PREFIX = "bpfsvc-"

_FILE = "settings.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``folder``: all that the cluster writes; some 6 GB. ``prefix``: of namespaces and cgroups.

    Two clusters run side by side if both are different. ``kubernetes``: the folder with Kubernetes'
    programs. ``cgroups``: what the nodes see, by default what the machine has.
    """

    kubernetes: Path
    folder: Path = FOLDER
    prefix: str = PREFIX
    cni: Cni = "bridge"
    cgroups: Cgroups = field(default_factory=of_machine)

    @property
    def bin(self) -> Path:
        """The folder with every program under its own name."""
        return self.folder / "bin"

    @property
    def images(self) -> Path:
        """The folder of the image archives."""
        return self.folder / "images"

    @property
    def state(self) -> Path:
        """The folder of all that ends with the cluster: logs, disks, keys."""
        return self.folder / "state"

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator."""
        return self.state / "admin.conf"

    @property
    def is_saved(self) -> bool:
        """True if a cluster came up in the folder, at least in part, and was not ended."""
        return (self.state / _FILE).exists()

    def save(self) -> None:
        """Write the settings into the folder."""
        fields = {key: str(value) for key, value in dataclasses.asdict(self).items()}
        self.state.mkdir(parents=True, exist_ok=True)
        (self.state / _FILE).write_text(json.dumps(fields, indent=1) + "\n")

    @staticmethod
    def saved(folder: Path) -> Settings:
        """Return the settings of the cluster in ``folder``; ``ClusterError`` if there is none."""
        file = folder / "state" / _FILE
        try:
            fields = json.loads(file.read_text())
        except FileNotFoundError:
            raise ClusterError(
                f"no cluster is up in {folder}", "start one: make cluster KUBERNETES=DIR"
            ) from None
        paths = {"kubernetes": Path(fields["kubernetes"]), "folder": Path(fields["folder"])}
        return Settings(**(fields | paths))
