"""One fault for each alert or more, made on real packets and real agents, and mended.

A fault is a context manager: it is made on entry and mended on exit. What it yields is done again
and again while the fault lasts: the traffic that meets it, or the fault itself if it is a repeated
one. A row may name what clients do while the alert is awaited to end.
"""

from __future__ import annotations

from tests.monitoring.agent_faults import (
    another_version,
    boot_without_api_server,
    changed_entries,
    crashes,
    no_agents,
    removed_pins,
    thread_that_hangs,
    thread_that_is_slow,
)
from tests.monitoring.fault import Fault
from tests.monitoring.scene import ROLLOUT_FACTOR, SHADOWED
from tests.monitoring.service_faults import (
    BLOCKED,
    LOSSY,
    NOBODY,
    SICK,
    SILENT,
    UNEVEN,
    WRONG,
    call,
    drop_rule_in_forward,
    flapping_readiness,
    full_conntrack,
    full_map,
    late_controllers,
    lossy_way,
    many_source_ports,
    missing_step,
    no_endpoints,
    refusing_endpoint,
    silent_backend,
    stale_kube_proxy,
    too_few_source_ports,
    too_many_connections,
    uneven_connections,
    unreadable_object,
    use_lossy,
    wrong_target_port,
)

SIDE_BY_SIDE = (
    Fault(("BpfsvcAgentRestarts",), crashes, part="restarted"),
    Fault(("BpfsvcVersionsDiffer",), another_version, factor=ROLLOUT_FACTOR),
    Fault(
        ("BpfsvcApiServerLost", "BpfsvcServingLastGood"), boot_without_api_server, part="cut_off"
    ),
    Fault(("BpfsvcProgramsRemoved",), removed_pins, part="web"),
    Fault(("BpfsvcDrift",), changed_entries, part="canary"),
    Fault(("BpfsvcProgrammingStale",), thread_that_hangs, part="stuck"),
    Fault(("BpfsvcProgrammingSlow", "BpfsvcWatchSlow"), late_controllers),
    Fault(("BpfsvcWritesSlow",), thread_that_is_slow, part="small"),
    Fault(("BpfsvcObjectsUnreadable",), unreadable_object, part="web"),
    Fault(("BpfsvcEndpointsFlap",), flapping_readiness),
    Fault(("BpfsvcServicesRefused",), full_map, part="small"),
    Fault(
        ("BpfsvcMapNearlyFull", "BpfsvcConnectionsFull"),
        too_many_connections,
        {"map": "connections"},
        part="small",
    ),
    Fault(("BpfsvcConntrackNearlyFull",), full_conntrack, part="stuck"),
    Fault(("BpfsvcPortsNearlyExhausted",), many_source_ports, part="canary"),
    Fault(("BpfsvcPortsExhausted",), too_few_source_ports, part="canary"),
    Fault(("BpfsvcPacketsDropped",), missing_step, {"reason": "step_missing"}, part="small"),
    Fault(
        ("BpfsvcBackendsFail",),
        wrong_target_port,
        {"name": WRONG.name},
        after=lambda scene: call(scene, "web", WRONG),
    ),
    Fault(("BpfsvcBackendsFail",), silent_backend, {"name": SILENT.name}),
    Fault(
        ("BpfsvcBackendsFail", "BpfsvcDropsElsewhere"),
        drop_rule_in_forward,
        {"name": BLOCKED.name, "reason": "SKB_DROP_REASON_NETFILTER_DROP"},
    ),
    Fault(("BpfsvcConnectionsUneven",), uneven_connections, {"name": UNEVEN.name}, part="web"),
    Fault(("BpfsvcConnectsSlow",), lossy_way, {"name": LOSSY.name}, after=use_lossy),
    Fault(
        ("BpfsvcServiceWithoutEndpoints",),
        no_endpoints,
        {"name": NOBODY.name},
        after=lambda scene: call(scene, "web", NOBODY, 3),
    ),
    Fault(
        ("BpfsvcEndpointsQuarantined",),
        refusing_endpoint,
        part="web",
        after=lambda scene: call(scene, "web", SICK),
    ),
    Fault(
        ("BpfsvcShadowDifferences",),
        stale_kube_proxy,
        {"service": SHADOWED.name},
    ),
)
"""Faults of one Service, node or agent, which are made at the same time."""

OF_ALL = (Fault(("BpfsvcAgentUnreachable", "BpfsvcAgentsMissing"), no_agents, part="web"),)
"""Faults that leave room for no other."""
