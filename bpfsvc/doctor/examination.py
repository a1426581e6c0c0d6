"""Look at everything, judge everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bpfsvc.config import DEFAULT_MASQUERADE_PORTS, DEFAULT_PIN_ROOT
from bpfsvc.datapath.attachment import Way
from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.hooks import PRIORITY
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.datapath.sysctls import NODE_PORTS, PortRange
from bpfsvc.doctor.facts import Facts
from bpfsvc.doctor.finding import Finding
from bpfsvc.doctor.judging import api as api_judging
from bpfsvc.doctor.judging import fastpath as fastpath_judging
from bpfsvc.doctor.judging import forwarding as forwarding_judging
from bpfsvc.doctor.judging import kubeproxy as kubeproxy_judging
from bpfsvc.doctor.judging import others as others_judging
from bpfsvc.doctor.judging import ports as ports_judging
from bpfsvc.doctor.judging import programs as programs_judging
from bpfsvc.doctor.judging import system as system_judging
from bpfsvc.doctor.looking import api, fastpath, forwarding, kubeproxy, others, ports, system
from bpfsvc.inspection.reader import reading
from bpfsvc.takeover import leftovers


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the agent would be run: the options of ``bpfsvc run`` that matter here."""

    pin_root: Path = DEFAULT_PIN_ROOT
    cgroup_root: str | None = None
    devices: tuple[str, ...] = ()
    attach: Way = "auto"
    tc_priority: int = PRIORITY
    masquerade_ports: PortRange = DEFAULT_MASQUERADE_PORTS
    node_ports: PortRange = NODE_PORTS
    kubeconfig: Path | None = None
    master: str = ""


def look(plan: Plan) -> Facts:
    """Gather all facts; nothing is changed."""
    root = PinRoot(plan.pin_root)
    with Conversation() as talk:
        network = read_network(talk)
        found = leftovers.find(network)
        with reading(root.path):
            beside = others.look(talk, network, root, plan.devices)
        return Facts(
            system=system.look_system(),
            places=system.look_places(root, plan.cgroup_root),
            others=beside,
            proxy=kubeproxy.look(root, found),
            ports=ports.look(plan.masquerade_ports, plan.node_ports),
            forwarding=forwarding.look(talk, network, plan.devices, found.saved),
            api=api.look(plan.kubeconfig, plan.master, network, found),
            attach=plan.attach,
            priority=plan.tc_priority,
            guards=fastpath.see(network, found.saved),
        )


def judge(facts: Facts) -> Iterator[Finding]:
    """Give all findings, in the order in which one would mend them."""
    yield from system_judging.judge(facts.system, facts.places, ports_reserved=facts.ports.reserved)
    yield from others_judging.judge(facts.others)
    yield from programs_judging.judge(
        facts.others.attached,
        tcx=facts.system.tcx and facts.attach != "clsact",
        priority=facts.priority,
    )
    yield from kubeproxy_judging.judge(facts.proxy, facts.ports.listening)
    yield from ports_judging.judge(facts.ports)
    yield from forwarding_judging.judge(facts.forwarding)
    yield from fastpath_judging.judge(facts.guards)
    yield from api_judging.judge(facts.api)
