"""The suite "isolation": nothing that happens on the cluster leaves its namespaces."""

from __future__ import annotations

from bpfsvc.devtools.lab.netns import NetworkNamespace
from tests.cluster import network
from tests.cluster.addresses import API, NODES
from tests.cluster.cluster import Cluster
from tests.cluster.report import Report

_SUITE = "isolation"
_ELSEWHERE = "http://192.0.2.1/"  # nobody has it: RFC 5737
_NO_ANSWER = {7, 28}  # curl's exit status: no connection, too late


def run(cluster: Cluster, report: Report, _whole: bool) -> None:
    """Look at the routes of all machines, and try to leave from each."""
    with report.case(_SUITE, "default routes lead to a machine that forwards nothing"):
        _check_routes(cluster)
    with report.case(_SUITE, "no machine reaches an address outside"):
        for host in network.HOSTS:
            command = ["curl", "--silent", "--connect-timeout", "2", _ELSEWHERE]
            status = cluster.popen(command, on=host.name).wait()
            if status not in _NO_ANSWER:
                raise AssertionError(f"curl {_ELSEWHERE} on {host.name} ended with {status}")


def _check_routes(cluster: Cluster) -> None:
    prefix = cluster.settings.prefix
    ends = {str(address) for address in API.addresses}
    nodes = {node.name for node in NODES}
    for name in network.NAMES:
        gateways = set(network.default_gateways(prefix, name))
        if gateways != (ends if name in nodes else set()):
            raise AssertionError(f"default routes of {name}: {', '.join(gateways) or 'none'}")
    api = NetworkNamespace(API.name, prefix=prefix)
    for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
        if api.sysctl(key) != "0":
            raise AssertionError(f"{API.name} forwards: {key}")
    api.release()
