"""Check facts about other programs on the node. Pure.

* Another implementation of Services: two must not run on one node.
* Programs on the interfaces: some may take packets before bpfsvc sees them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bpfsvc.doctor.facts import CILIUM_PINS, ForeignProgram, OthersFacts
from bpfsvc.doctor.finding import Finding, note, ok, refuse, some, warning

# -- other implementations of Services -------------------------------------------------------------
#
# The interfaces seen are those of this network namespace. The names of loaded programs and maps are
# those of the whole machine, which may hold several nodes (kind), so names alone prove nothing.
#
# * Cilium: cilium_host, cilium_net. It balances for its pods always, and replaces kube-proxy if it
#   also has socket programs (cil_sock4_connect, cilium/cilium bpf/bpf_sock.c; pinned under
#   cilium/socketlb) or maps of NodePorts (cilium_nodeport_neigh4, pkg/maps/neighborsmap).
# * Calico: bpfin.cali, bpfout.cali (projectcalico/calico, felix/dataplane/linux/bpf_ep_mgr.go)
#   exist only in eBPF mode, and so do its tc programs cali_tc_... Its XDP program is used in
#   iptables mode as well.
# * Antrea: antrea-gw0; with proxyAll Services are routed there by the next hop 169.254.0.253
#   (antrea-io/antrea, pkg/agent/config: VirtualServiceIPv4).
# * OVN-Kubernetes: ovn-k8s-mp0 (ovn-org/ovn-kubernetes, go-controller/pkg/types).
# * kube-router: kube-dummy-if, made only by its service proxy (cloudnativelabs/kube-router,
#   pkg/controllers/proxy).
# * bpfsvc: programs on the interfaces that use maps like ours, of another agent.

_CILIUM_DEVICES = {"cilium_host", "cilium_net"}
_CILIUM_SERVICES = ("cil_sock4_connec", "cil_sock6_connec", "cilium_nodeport")
_CALICO_DEVICES = {"bpfin.cali", "bpfout.cali"}


def check_others(others: OthersFacts) -> Iterator[Finding]:
    """Check whether another program on this node implements Services."""
    found = [*_implementations(others)]
    yield from found or [ok("others", "no other program implements Services on this node")]


def _implementations(others: OthersFacts) -> Iterator[Finding]:
    yield from _cilium(others)
    tc = {each.name for each in others.attached if each.attach in ("tcx", "clsact")}
    if others.devices & _CALICO_DEVICES or any(name.startswith("cali_tc") for name in tc):
        yield _refusal("Calico in eBPF mode", "switch it to iptables or nftables mode first")
    if "antrea-gw0" in others.devices:
        if others.gateway == "antrea-gw0":
            yield _refusal("Antrea with proxyAll", "set antreaProxy.proxyAll to false first")
        else:
            yield warning(
                "others",
                "Antrea balances what its pods send to ClusterIPs; bpfsvc would translate first",
                "test this combination first, or disable Antrea's feature AntreaProxy",
            )
    if "ovn-k8s-mp0" in others.devices:
        yield _refusal(
            "OVN-Kubernetes", "it cannot run without its Services: use OVN-Kubernetes or bpfsvc"
        )
    if "kube-dummy-if" in others.devices:
        yield _refusal(
            "kube-router's service proxy",
            "run kube-router with --run-service-proxy=false,"
            " and clean up with kube-router --cleanup-config",
        )
    if any(each.bpfsvc for each in others.attached):
        yield _refusal(
            "another bpfsvc",
            "stop it and run bpfsvc cleanup with its --pin-root, or use its --pin-root here",
        )


def _cilium(others: OthersFacts) -> Iterator[Finding]:
    loaded = others.loaded or frozenset()
    named = [name for name in loaded if name.startswith(_CILIUM_SERVICES)]
    if others.devices & _CILIUM_DEVICES:
        if named or others.pinned & set(CILIUM_PINS):
            yield _refusal(
                "Cilium in place of kube-proxy", "set Cilium's kubeProxyReplacement to false first"
            )
        else:
            unseen = "" if others.loaded is not None else " (whether it does more cannot be seen)"
            yield warning(
                "others",
                f"Cilium balances what its pods send to ClusterIPs{unseen};"
                " bpfsvc would run beside it",
                "test this combination first; never use it with kubeProxyReplacement",
            )
    elif named:
        yield note(
            "others",
            f"a Cilium elsewhere on this machine has loaded {', '.join(sorted(named)[:2])}",
        )


def _refusal(who: str, hint: str) -> Finding:
    return refuse("others", f"{who} implements Services on this node already", hint)


# -- programs on the interfaces --------------------------------------------------------------------
#
# A packet meets XDP first, then tcx programs in the order in which they were attached, then the
# filters of a clsact qdisc by priority. Any of them may end its walk; TC_ACT_OK of a filter does.

_OWNERS = (
    # cilium/cilium, bpf/bpf_*.c: cil_from_container, cil_to_netdev, cil_xdp_entry ...; before 1.12
    # a filter was named after its object: bpf_lxc.o:[from-container]
    ("cil_", "Cilium"),
    ("bpf_lxc", "Cilium"),
    ("bpf_netdev", "Cilium"),
    ("bpf_host", "Cilium"),
    # projectcalico/calico, felix/bpf-gpl: cali_tc_preamble, cali_tc_main, cali_xdp_preamble;
    # before 3.25 a filter was named calico_from_workload_ep ...; XDP in iptables mode: xdp_cali_*
    ("cali_", "Calico"),
    ("calico_", "Calico"),
    ("xdp_cali", "Calico"),
    # aws/aws-network-policy-agent, pkg/ebpf/c: priority 1, ends with TC_ACT_OK (#480, #514)
    ("handle_ingress", "AWS network policy agent"),
    ("handle_egress", "AWS network policy agent"),
    # DataDog/datadog-agent, pkg/security/ebpf/c (#13762)
    ("classifier_", "Datadog agent"),
    ("bpfsvc", "bpfsvc"),
)
"""How the names of programs begin -> who attaches them."""


def check_programs(
    attached: Iterable[ForeignProgram], *, tcx: bool, priority: int
) -> Iterator[Finding]:
    """Check the foreign programs. ``tcx``: True if ours would be tcx links; else filters."""
    before: dict[str, list[ForeignProgram]] = {}
    after: dict[str, list[ForeignProgram]] = {}
    for each in attached:
        first = each.attach in ("tcx", "xdp") or (not tcx and each.priority <= priority)
        (before if first else after).setdefault(_program_text(each), []).append(each)
    if not before and not after:
        yield ok("programs", "no other program is attached to the interfaces")
    for text, found in before.items():
        yield warning(
            "programs",
            f"{text} sees packets before bpfsvc on {_places(found)}; if it ends a packet's walk,"
            " Services do not work there",
            "make it return 'next' or 'unspecified', start bpfsvc before it,"
            " or exclude the interface with --devices"
            if found[0].attach != "clsact"
            else "make it return 'unspecified', or lower --tc-priority",
        )
    for text, found in after.items():
        yield note("programs", f"{text} comes after bpfsvc on {_places(found)}")


def _owner(each: ForeignProgram) -> str:
    if each.bpfsvc:
        return "bpfsvc"
    return next((who for prefix, who in _OWNERS if each.name.startswith(prefix)), "")


def _program_text(each: ForeignProgram) -> str:
    owner = _owner(each)
    name = f"{each.kind} {each.name!r}" if each.name else f"a {each.kind} without a name"
    at = f" at priority {each.priority}" if each.attach == "clsact" else ""
    return f"{f'{owner}: ' if owner else ''}{each.attach} {name}{at}"


def _places(found: list[ForeignProgram]) -> str:
    return some([f"{each.interface} {each.hook}" for each in found])
