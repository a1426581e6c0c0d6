"""Another that does Services on this node: two of a kind must not.

What a device says is of this network namespace; names of loaded programs and maps are of the whole
machine, which may hold several nodes (kind). So names alone convict nobody. The signs:

* Cilium: ``cilium_host``, ``cilium_net``. It balances for pods always, and replaces kube-proxy if
  it also has socket programs (``cil_sock4_connect``, cilium/cilium bpf/bpf_sock.c; pinned under
  ``cilium/socketlb``) or maps of NodePorts (``cilium_nodeport_neigh4``, pkg/maps/neighborsmap).
* Calico: ``bpfin.cali``, ``bpfout.cali`` (projectcalico/calico, felix/dataplane/linux/
  bpf_ep_mgr.go) exist in eBPF mode alone, as do its tc programs ``cali_tc_...``. Its XDP program
  is used in iptables mode as well.
* Antrea: ``antrea-gw0``; with ``proxyAll`` Services are routed there by way of 169.254.0.253
  (antrea-io/antrea, pkg/agent/config: VirtualServiceIPv4).
* OVN-Kubernetes: ``ovn-k8s-mp0`` (ovn-org/ovn-kubernetes, go-controller/pkg/types).
* kube-router: ``kube-dummy-if``, made by its service proxy alone (cloudnativelabs/kube-router,
  pkg/controllers/proxy).
* bpfsvc: programs on the interfaces with maps like ours, which are not ours.
"""

from __future__ import annotations

from collections.abc import Iterator

from bpfsvc.doctor.finding import Finding, note, ok, refuse, warning
from bpfsvc.doctor.sightings import Others

SUBJECT = "others"

ANTREA_SERVICES = "169.254.0.253"
"""The address by way of which Antrea routes Services to its gateway."""

_CILIUM_DEVICES = {"cilium_host", "cilium_net"}
_CILIUM_SERVICES = ("cil_sock4_connec", "cil_sock6_connec", "cilium_nodeport")
_CALICO_DEVICES = {"bpfin.cali", "bpfout.cali"}

CILIUM_PINS = (
    "tc/globals/cilium_nodeport_neigh4",
    "tc/globals/cilium_nodeport_neigh6",
    "tc/globals/cilium_lb4_reverse_sk",
    "tc/globals/cilium_lb6_reverse_sk",
    "cilium/socketlb/links/cgroup/cil_sock4_connect",
    "cilium/socketlb/links/cgroup/cil_sock6_connect",
)
"""Pins, below a bpf file system, of a Cilium that replaces kube-proxy."""


def judge(others: Others) -> Iterator[Finding]:
    """Judge who else is here."""
    found = [*_found(others)]
    yield from found
    if not found:
        yield ok(SUBJECT, "nobody else does Services here")


def _found(others: Others) -> Iterator[Finding]:
    yield from _cilium(others)
    tc = {each.name for each in others.attached if each.way in ("tcx", "clsact")}
    if others.devices & _CALICO_DEVICES or any(name.startswith("cali_tc") for name in tc):
        yield _refusal("Calico in eBPF mode", "switch it to iptables or nftables mode first")
    if "antrea-gw0" in others.devices:
        if others.gateway == "antrea-gw0":
            yield _refusal("Antrea with proxyAll", "set antreaProxy.proxyAll to false first")
        else:
            yield warning(
                SUBJECT,
                "Antrea balances what its pods send to ClusterIPs; bpfsvc would come before it",
                "try it apart, or disable the feature AntreaProxy",
            )
    if "ovn-k8s-mp0" in others.devices:
        yield _refusal("OVN-Kubernetes", "it cannot do without: use it or bpfsvc")
    if "kube-dummy-if" in others.devices:
        yield _refusal(
            "kube-router's service proxy",
            "run kube-router with --run-service-proxy=false,"
            " and clean up with kube-router --cleanup-config",
        )
    if any(each.bpfsvc for each in others.attached):
        yield _refusal(
            "another bpfsvc", "stop it and run bpfsvc cleanup with its --pin-root, or use its own"
        )


def _cilium(others: Others) -> Iterator[Finding]:
    loaded = others.loaded or frozenset()
    named = [name for name in loaded if name.startswith(_CILIUM_SERVICES)]
    if others.devices & _CILIUM_DEVICES:
        if named or others.pinned & set(CILIUM_PINS):
            yield _refusal(
                "Cilium in place of kube-proxy", "set Cilium's kubeProxyReplacement to false first"
            )
        else:
            blind = "" if others.loaded is not None else " (whether it does more cannot be seen)"
            yield warning(
                SUBJECT,
                f"Cilium balances what its pods send to ClusterIPs{blind};"
                " bpfsvc would come beside it",
                "try it apart; with kubeProxyReplacement it must not be",
            )
    elif named:
        yield note(
            SUBJECT, f"a Cilium elsewhere on this machine has loaded {', '.join(sorted(named)[:2])}"
        )


def _refusal(who: str, hint: str) -> Finding:
    return refuse(SUBJECT, f"{who} does Services on this node already", hint)
