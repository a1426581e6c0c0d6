"""Collect all facts about a node, and check them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bpfsvc.base.attachment import PRIORITY, AttachMode
from bpfsvc.base.ports import NODE_PORTS, PortRange
from bpfsvc.config.bpfsvc_v1alpha1 import (
    DEFAULT_MASQUERADE_PORTS,
    DEFAULT_PIN_ROOT,
    DEFAULT_PROGRAMS,
)
from bpfsvc.config.loading import Documents, make_config
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.doctor.check import fast_path as check_fast_path
from bpfsvc.doctor.check import node as check_node
from bpfsvc.doctor.check import others as check_others
from bpfsvc.doctor.check.firewall import check_firewall
from bpfsvc.doctor.check.traffic import check_traffic
from bpfsvc.doctor.collect import node as collect_node
from bpfsvc.doctor.collect.fast_path import collect_fast_path
from bpfsvc.doctor.collect.firewall import collect_firewall
from bpfsvc.doctor.collect.others import collect_others
from bpfsvc.doctor.collect.ports import collect_ports
from bpfsvc.doctor.collect.traffic import collect_traffic
from bpfsvc.doctor.facts import Facts
from bpfsvc.doctor.finding import Finding, note, ok, warning
from bpfsvc.inspect.reader import reading
from bpfsvc.migration.kube_proxy import leftovers
from bpfsvc.model.answers import AgentConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorPlan:
    """How the agent would be run: the options of ``bpfsvc run`` that matter here."""

    pin_root: Path = DEFAULT_PIN_ROOT
    cgroup_root: str | None = None
    devices: tuple[str, ...] = ()
    attach: AttachMode = "auto"
    tc_priority: int = PRIORITY
    masquerade_ports: PortRange = DEFAULT_MASQUERADE_PORTS
    node_ports: PortRange = NODE_PORTS
    kubeconfig: Path | None = None
    master: str = ""
    programs: Path | None = DEFAULT_PROGRAMS


def plan_of(documents: Documents) -> DoctorPlan:
    """Return the plan to run the agent with these documents."""
    config = make_config(documents, "", None)
    return DoctorPlan(
        pin_root=config.pin_root,
        cgroup_root=documents.bpfsvc.cgroup_root or None,
        devices=config.devices,
        attach=config.attach,
        tc_priority=config.tc_priority,
        masquerade_ports=config.masquerade_ports,
        node_ports=config.node_ports,
        kubeconfig=config.kubeconfig,
        master=config.master,
    )


def about_settings(documents: Documents, agent: AgentConfiguration | None) -> Iterator[Finding]:
    """Yield findings about a configuration file, or whose settings are examined without one."""
    if agent:
        yield ok("config", f"as of the agent that runs here (process {agent.process})")
    if documents.file is None:
        return
    yield ok("config", f"{documents.file} can be used, in mode {documents.kubeproxy.mode}")
    for text in documents.warnings:
        yield warning("config", text)
    for text in documents.notes:
        yield note("config", text)


def collect(plan: DoctorPlan) -> Facts:
    """Return all facts; nothing is changed."""
    root = PinRoot(plan.pin_root)
    network = read_network()
    left = leftovers.find(network)
    with reading(root.path):
        others = collect_others(network, root, plan.devices)
    return Facts(
        system=collect_node.collect_system(plan.programs),
        file_systems=collect_node.collect_file_systems(root, plan.cgroup_root),
        others=others,
        kube_proxy=collect_node.collect_kube_proxy(root, left),
        ports=collect_ports(plan.masquerade_ports, plan.node_ports, root),
        forwarding=collect_node.collect_forwarding(network, plan.devices, left.saved),
        api_server=collect_node.collect_api_server(plan.kubeconfig, plan.master, network, left),
        attach=plan.attach,
        priority=plan.tc_priority,
        fast_path=collect_fast_path(network, left.saved),
        firewall=collect_firewall(network, root, left.saved),
        traffic=collect_traffic(network, root, left.saved),
    )


def check(facts: Facts) -> Iterator[Finding]:
    """Yield all findings, in the order in which they are best fixed."""
    yield from check_node.check_system(facts.system)
    yield from check_node.check_file_systems(
        facts.file_systems, ports_reserved=facts.ports.reserved
    )
    yield from check_others.check_others(facts.others)
    yield from check_others.check_programs(
        facts.others.attached,
        tcx=facts.system.tcx and facts.attach != "clsact",
        priority=facts.priority,
    )
    yield from check_node.check_kube_proxy(facts.kube_proxy, facts.ports.listening)
    yield from check_node.check_ports(facts.ports)
    yield from check_node.check_forwarding(facts.forwarding)
    yield from check_fast_path.check_fast_path(facts.fast_path)
    yield from check_firewall(facts.firewall)
    yield from check_traffic(facts.traffic)
    yield from check_node.check_api_server(facts.api_server)
