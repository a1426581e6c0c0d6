"""Programs of others on the interfaces: whose they are, and whether they may keep packets from us.

A packet meets XDP first, then tcx programs in the order in which they were attached, then the
filters of a clsact qdisc by priority. Any of them may end its walk; TC_ACT_OK of a tc filter does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bpfsvc.doctor.finding import Finding, note, ok, some, warning
from bpfsvc.doctor.sightings import Attached

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


def owner(each: Attached) -> str:
    """Name who attached a program, as far as its name tells; "" if it does not."""
    if each.bpfsvc:
        return "bpfsvc"
    return next((who for prefix, who in _OWNERS if each.name.startswith(prefix)), "")


def judge(attached: Iterable[Attached], *, tcx: bool, priority: int) -> Iterator[Finding]:
    """Judge the foreign programs. ``tcx``: whether ours are tcx links; else filters."""
    before: dict[str, list[Attached]] = {}
    behind: dict[str, list[Attached]] = {}
    for each in attached:
        first = each.way in ("tcx", "xdp") or (not tcx and each.priority <= priority)
        (before if first else behind).setdefault(_words(each), []).append(each)
    if not before and not behind:
        yield ok("programs", "no other program is on the interfaces")
    for words, found in before.items():
        yield warning(
            "programs",
            f"{words} sees packets first on {_places(found)}; if it ends the walk, Services do not"
            " work there",
            "let it return 'next' or 'unspecified', start bpfsvc before it,"
            " or exclude the interface with --devices"
            if found[0].way != "clsact"
            else "let it return 'unspecified', or lower --tc-priority",
        )
    for words, found in behind.items():
        yield note("programs", f"{words} comes after bpfsvc on {_places(found)}")


def _words(each: Attached) -> str:
    who = owner(each)
    name = f"{each.kind} {each.name!r}" if each.name else f"a {each.kind} without a name"
    at = f" at priority {each.priority}" if each.way == "clsact" else ""
    return f"{f'{who}: ' if who else ''}{each.way} {name}{at}"


def _places(found: list[Attached]) -> str:
    return some([f"{each.interface} {each.hook}" for each in found])
