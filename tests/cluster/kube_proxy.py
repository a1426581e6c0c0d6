"""The real kube-proxy, with the objects that kubeadm makes for it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import yaml

from tests.cluster.addresses import POD_CIDRS
from tests.cluster.control_plane import URL

Mode = Literal["", "iptables", "nftables", "ipvs"]
MODES: tuple[Mode, ...] = get_args(Mode)

_MANIFEST = Path(__file__).with_name("manifests") / "kube-proxy.yaml"


def kube_proxy_config() -> str:
    """Return only the ConfigMap, as it stays when kube-proxy goes."""
    documents = yaml.safe_load_all(kube_proxy_manifest("nftables"))
    return yaml.safe_dump_all(document for document in documents if document["kind"] == "ConfigMap")


def kube_proxy_manifest(mode: Mode) -> str:
    """Return the objects, as YAML, with this cluster's addresses and a mode."""
    documents = list(yaml.safe_load_all(_MANIFEST.read_text()))
    (pods,) = (
        document["spec"]["template"] for document in documents if document["kind"] == "DaemonSet"
    )
    pods["metadata"]["annotations"] = {"mode": mode}  # another one replaces the pods
    (config,) = (each["data"] for each in documents if each["kind"] == "ConfigMap")
    settings = yaml.safe_load(config["config.conf"])
    settings |= {"mode": mode, "clusterCIDR": ",".join(POD_CIDRS)}
    config["config.conf"] = yaml.safe_dump(settings)
    kubeconfig = yaml.safe_load(config["kubeconfig.conf"])
    kubeconfig["clusters"][0]["cluster"]["server"] = URL
    config["kubeconfig.conf"] = yaml.safe_dump(kubeconfig)
    return yaml.safe_dump_all(documents)
