"""The configuration files of a node: containerd's, the kubelet's, the CNI's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.addresses import DNS_SERVICE
from tests.cluster.cgroups import Cgroups
from tests.cluster.settings import Cni

PAUSE_IMAGE = "registry.k8s.io/pause:3.10.2"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"

_CONTAINERD = f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = -999
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""
_RUNC = Path(__file__).with_name("runc.py")

RESOLV_CONF = "# No resolver: names outside of the cluster do not exist.\n"


def containerd(cgroups: Cgroups) -> str:
    """Return containerd's configuration."""
    if cgroups == "hybrid":
        return _CONTAINERD
    return f'{_CONTAINERD}      BinaryName = "{_RUNC}"\n'


def kubelet(resolv_conf: Path) -> str:
    """Return the kubelet's configuration."""
    fields: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": True},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": str(resolv_conf),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        # A disk that other programs fill is not the tests' business.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        # The images are not in any registry: one that is removed is gone.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "10s",
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "logging": {"verbosity": 2},
    }
    return yaml.safe_dump(fields)


def cni(kind: Cni, pod_cidrs: list[str]) -> str:
    """Return the configuration of the pods' network."""
    plugin: dict[str, Any] = {"type": kind, "ipMasq": False, "mtu": 1500}
    if kind == "bridge":
        plugin |= {"bridge": "cni0", "isGateway": True, "hairpinMode": True}
    plugin["ipam"] = {
        "type": "host-local",
        "dataDir": "/run/cni-ipam",
        "ranges": [[{"subnet": cidr}] for cidr in pod_cidrs],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin, ports]})


def masquerade(pod_cidrs: tuple[str, ...]) -> str:
    """Return the nftables rules with which pods reach what is no pod, as kindnet has them."""
    rules = []
    for cidr in pod_cidrs:
        family = "ip6" if ":" in cidr else "ip"
        rules.append(
            f"{family} saddr {cidr} {family} daddr != {cidr} fib daddr type != local masquerade"
        )
    lines = "\n".join(f"    {rule}" for rule in rules)
    return f"""table inet pods-masquerade {{
  chain postrouting {{
    type nat hook postrouting priority srcnat + 10; policy accept;
{lines}
  }}
}}
"""
