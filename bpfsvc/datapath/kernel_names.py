"""Names of programs and maps in the kernel, as ``bpftool prog show`` and ``map show`` list them.

All names begin with ``bpfsvc_``, so that everybody sees that bpfsvc made the object. The kernel
keeps 15 characters of a name, which leaves 8: longer names have a short form here. Pins and
``bpfsvc maps dump`` have the long names.

Earlier builds had no prefix. A map that a newer build shares with an older build keeps the name
that the older build gave it.
"""

from __future__ import annotations

PREFIX = "bpfsvc_"

LENGTH = 15
"""Characters that the kernel keeps."""

SHORT = {
    # programs
    "ingress_l3": "ingr_l3",
    "egress_l3": "egr_l3",
    "getpeername4": "getpeer4",
    "getpeername6": "getpeer6",
    "step_first": "first",
    "step_open": "open",
    "step_established": "known",
    "step_icmp": "icmp",
    "step_parse_slow": "parse",
    "step_rewrite": "rewrite",
    "step_reject": "reject",
    "step_masquerade": "masq",
    "step_fast_path": "fast",
    "step_echo": "echo",
    "step_schedule": "sched",
    "step_attempt": "attempt",
    "step_revise": "revise",
    "step_untranslated": "as_is",
    "syn_again": "syn_more",
    "syn_refused": "syn_rst",
    "socket_state": "sk_state",
    # maps
    "affinities": "affinity",
    "backend_counters": "be_count",
    "bound_sockets": "bound",
    "backend_loads": "be_loads",
    "backend_failures": "be_fails",
    "backend_outcomes": "be_ends",
    "cached_routes": "routes",
    "candidates": "candidat",
    "closed_flows": "closed",
    "connect_times": "con_time",
    "connecting": "syn_sent",
    "connections": "conns",
    "crc32c_steps": "crc32c",
    "destinations": "dests",
    "direct_flows": "direct",
    "dropped_packets": "drops",
    "echo_addresses": "echo_ips",
    "endpoints": "endpoint",
    "established_counts": "est_cnt",
    "established_flows": "est_flow",
    "established_ports": "est_port",
    "fast_flows": "fastflow",
    "fragment_budgets": "frag_max",
    "fragments": "frags",
    "fresh_namespaces": "netns_0",
    "frontends": "frontend",
    "half_open": "halfopen",
    "hardware_addresses": "macs",
    "icmp_targets": "icmp_to",
    "icmp_total": "icmp_all",
    "interfaces": "ifaces",
    "localities": "locality",
    "masquerade_choices": "masq_src",
    "masquerade_turns": "masqturn",
    "namespaces": "netns",
    "new_connections": "newconns",
    "netfilter_flows": "nf_flows",
    "node_addresses": "nodeaddr",
    "observed_sockets": "obs_sock",
    "peer_names": "peername",
    "pod_ports": "podports",
    "port_filters": "ports",
    "port_shortages": "fewports",
    "quarantined": "quarant",
    "positions": "position",
    "schedule_rounds": "rounds",
    "schedule_tables": "schedule",
    "schedule_works": "sched_wk",
    "service_networks": "svc_nets",
    "socket_loads": "sk_loads",
    "socket_optouts": "optouts",
    "socket_overflow": "sk_more",
    "socket_translations": "sk_store",
    "source_ranges": "ranges",
    "time_wait_flows": "timewait",
    "udp_serving": "udp_srv",
    "udp_sockets": "udp_sock",
    "untranslated": "untransl",
}
"""Names that do not fit, each with its short form."""


def kernel_name(name: str) -> str:
    """Return the name under which the kernel knows a program or map."""
    return (PREFIX + SHORT.get(name, name))[:LENGTH]


def kernel_names(name: str) -> frozenset[str]:
    """Return the names under which the kernel may know it: of this build and of earlier ones."""
    return frozenset({kernel_name(name), name[:LENGTH]})
