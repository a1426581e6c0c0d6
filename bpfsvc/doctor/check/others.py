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
# Interfaces are seen in this network namespace alone. Names of loaded programs and maps are seen of
# the whole machine, which may hold several nodes (kind), so names alone prove nothing.
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
    findings = [*_implementations(others)]
    yield from findings or [ok("others", "no other program implements Services on this node")]


def _implementations(others: OthersFacts) -> Iterator[Finding]:
    yield from _cilium(others)
    tc = {program.name for program in others.attached if program.attach in ("tcx", "clsact")}
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
    if any(program.bpfsvc for program in others.attached):
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


def _refusal(program: str, hint: str) -> Finding:
    return refuse("others", f"{program} implements Services on this node already", hint)


# -- programs on the interfaces --------------------------------------------------------------------
#
# A packet meets XDP first, then tcx programs in the order in which they were attached, then the
# filters of a clsact qdisc by priority. Any of them may end its walk; TC_ACT_OK of a filter does.
# netkit's own programs see what comes from a pod before all of these, what goes to it after them.

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
"""Prefixes of the names of programs -> the owner."""


_REMEDY = (
    "make it return 'next' or 'unspecified', start bpfsvc before it,"
    " or exclude the interface with --devices"
)
_REMEDIES = {
    "clsact": "make it return 'unspecified', or lower --tc-priority",
    "netkit": "make it return 'next' or 'pass', or exclude the interface with --devices",
}
"""By the way of attachment; else :data:`_REMEDY`."""


def check_programs(
    attached: Iterable[ForeignProgram], *, tcx: bool, priority: int
) -> Iterator[Finding]:
    """Check the foreign programs. ``tcx``: True if ours would be tcx links; else filters."""
    before: dict[str, list[ForeignProgram]] = {}
    after: dict[str, list[ForeignProgram]] = {}
    for program in attached:
        first = _comes_first(program, tcx=tcx, priority=priority)
        (before if first else after).setdefault(_program_text(program), []).append(program)
    if not before and not after:
        yield ok("programs", "no other program is attached to the interfaces")
    for text, programs in before.items():
        yield warning(
            "programs",
            f"{text} sees packets before bpfsvc on {_hooks(programs)}; if it ends a packet's walk,"
            " Services do not work there",
            _REMEDIES.get(programs[0].attach, _REMEDY),
        )
    for text, programs in after.items():
        yield note("programs", f"{text} comes after bpfsvc on {_hooks(programs)}")


def _comes_first(program: ForeignProgram, *, tcx: bool, priority: int) -> bool:
    """True if a program sees packets before ours, which is a tcx program if ``tcx``."""
    if program.attach == "netkit":
        return program.hook == "ingress"
    return program.attach != "clsact" or (not tcx and program.priority <= priority)


def _owner(program: ForeignProgram) -> str:
    if program.bpfsvc:
        return "bpfsvc"
    return next((owner for prefix, owner in _OWNERS if program.name.startswith(prefix)), "")


def _program_text(program: ForeignProgram) -> str:
    owner = _owner(program)
    name = (
        f"{program.kind} {program.name!r}" if program.name else f"a {program.kind} without a name"
    )
    at = f" at priority {program.priority}" if program.attach == "clsact" else ""
    return f"{f'{owner}: ' if owner else ''}{program.attach} {name}{at}"


def _hooks(programs: list[ForeignProgram]) -> str:
    return some([f"{program.interface} {program.hook}" for program in programs])
