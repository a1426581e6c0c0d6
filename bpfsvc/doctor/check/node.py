"""Check facts about the node itself: kernel, file systems, kube-proxy, ports, forwarding. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from bpfsvc.base.ports import PortRange
from bpfsvc.doctor.facts import (
    ApiServerFacts,
    ChainPolicy,
    FileSystemFacts,
    ForwardingFacts,
    Interface,
    KubeProxyFacts,
    PortFacts,
    SystemFacts,
)
from bpfsvc.doctor.finding import Finding, note, ok, refuse, some, warning
from bpfsvc.migration.kube_proxy.running import HEALTHZ_PORT, METRICS_PORT

# -- the kernel and the rights of this process -----------------------------------------------------

_OLDEST_TESTED = (5, 10)
"""The oldest Linux that bpfsvc is tested on."""


def check_system(system: SystemFacts) -> Iterator[Finding]:
    """Check whether the programs can be compiled, loaded and attached."""
    yield from _kernel(system)
    if system.unprivileged:
        yield refuse("privileges", system.unprivileged, "run as root, or privileged in a container")
    if system.jit == 0:
        yield warning(
            "jit",
            "BPF programs are interpreted: several times slower",
            "sysctl -w net.core.bpf_jit_enable=1",
        )
    if system.shipped:
        yield ok("compiler", "the image carries the compiled programs, so none is needed")
    elif system.compiler:
        yield ok("compiler", "bcc is installed")
    else:
        missing = "bcc, the compiler of the kernel programs, is not installed"
        yield refuse(
            "compiler",
            f"{missing}, and {system.unfit}" if system.unfit else missing,
            "use the image with a name that ends with -compiler"
            if system.unfit
            else "apt-get install python3-bpfcc (the PyPI package named bcc is something else)",
        )


def _kernel(system: SystemFacts) -> Iterator[Finding]:
    version = tuple(int(part) for part in re.findall(r"\d+", system.release)[:2])
    if system.missing and not system.unprivileged:
        yield refuse(
            "kernel",
            f"Linux {system.release} refuses {'; '.join(system.missing)}",
            "use Linux 5.10 or later with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF and"
            " CONFIG_CGROUP_BPF",
        )
    elif version < _OLDEST_TESTED:
        yield warning(
            "kernel",
            f"Linux {system.release} is older than 5.10, the oldest tested",
            "test on one node first, or upgrade the kernel",
        )
    elif not system.unprivileged:
        attach = "tcx links" if system.tcx else "filters in clsact qdiscs: it has no tcx"
        features = "lacks some features" if system.without else "has all features"
        yield ok("kernel", f"Linux {system.release} {features}, and attaches by {attach}")
        for line in system.without:
            yield ok("kernel", line)


# -- file systems ----------------------------------------------------------------------------------


def check_file_systems(facts: FileSystemFacts, *, ports_reserved: bool) -> Iterator[Finding]:
    """Check pins, cgroups and sysctls. ``ports_reserved``: True if no sysctl has to be written."""
    yield from _pins(facts)
    yield from _cgroup(facts)
    if not facts.sysctls_writable and not ports_reserved:
        yield refuse(
            "sysctls",
            "/proc/sys cannot be written, and the masquerade ports are not reserved yet",
            "run privileged, or with /proc/sys writable, or reserve them on the node:"
            " net.ipv4.ip_local_reserved_ports",
        )


def _pins(facts: FileSystemFacts) -> Iterator[Finding]:
    if not facts.bpffs and facts.mountable:
        yield warning(
            "bpffs",
            f"{facts.pin_root} is not in a bpf file system",
            "the DaemonSet of deploy/ mounts one itself; elsewhere: mount -t bpf bpf /sys/fs/bpf",
        )
    elif not facts.bpffs:
        yield refuse(
            "bpffs",
            f"{facts.pin_root} is not in a bpf file system",
            "mount -t bpf bpf /sys/fs/bpf, or choose another directory with --pin-root",
        )
    elif not facts.pin_writable:
        yield refuse(
            "bpffs",
            f"no file can be made at {facts.pin_root}",
            "mount it writable, and run as root",
        )
    else:
        yield ok("bpffs", f"{facts.pin_root} is in a bpf file system")


def _cgroup(facts: FileSystemFacts) -> Iterator[Finding]:
    if facts.no_cgroup:
        yield refuse("cgroup", facts.no_cgroup, facts.no_cgroup_hint)
    elif not facts.cgroup:
        yield note(
            "cgroup",
            "sockets are not translated (--cgroup-root none): only packets are,"
            " and 127.0.0.1:nodePort does not work",
        )
    elif facts.nested:
        yield warning(
            "cgroup",
            f"{facts.cgroup} is not the root of its cgroup tree: sockets of processes outside it"
            " are not translated",
            "in a pod, mount the node's cgroup2 and set it with --cgroup-root;"
            " no action needed where the node itself is a container (kind, k0s)",
        )
    else:
        yield ok("cgroup", f"{facts.cgroup} is the root of its cgroup tree")


# -- kube-proxy ------------------------------------------------------------------------------------


def check_kube_proxy(facts: KubeProxyFacts, listening: frozenset[int]) -> Iterator[Finding]:
    """Check kube-proxy, which never forbids a start. ``listening``: TCP ports of servers."""
    if facts.running.runs:
        yield warning(
            "kube-proxy",
            f"{facts.running}: bpfsvc handles new connections, and kube-proxy keeps writing rules",
            "when bpfsvc serves, remove kube-proxy's DaemonSet; then bpfsvc cleanup --kube-proxy",
        )
    elif facts.running.sees_node:
        yield ok("kube-proxy", "it does not run")
    else:
        yield note(
            "kube-proxy",
            "whether it runs cannot be seen from this process namespace; its metrics server does"
            " not answer",
            "check on the node, or run with hostPID",
        )
    if not facts.agent_runs and not facts.running.runs:
        taken = [port for port in (HEALTHZ_PORT, METRICS_PORT) if port in listening]
        if taken:
            ports = " and ".join(str(port) for port in taken)
            yield warning(
                "kube-proxy",
                f"another program listens on port {ports}, which kube-proxy and bpfsvc use",
                "stop it, or choose others with --healthz-bind-address and --metrics-bind-address",
            )
    if facts.leftovers:
        yield note(
            "kube-proxy",
            f"its rules are still here: {some(facts.leftovers, '; ')}",
            "bpfsvc cleanup --kube-proxy --dry-run",
        )
    elif not facts.unseen:
        yield ok("kube-proxy", "none of its rules is here")
    for text in facts.remarks:
        yield note("kube-proxy", text)
    for text in facts.unseen:
        yield note("kube-proxy", text, "install it to check")


# -- ports -----------------------------------------------------------------------------------------
#
# A server may listen on a masquerade port, as the kubelet does on 10250: its clients' packets have
# another source than any backend's. Packets that the node itself sends from such a port may collide
# with a masqueraded connection; the programs notice that and choose another port.


def check_ports(ports: PortFacts) -> Iterator[Finding]:
    """Check that masquerade ports, NodePorts and the ports of the node's programs differ."""
    if ports.clash:
        yield refuse("ports", ports.clash, ports.clash_hint)
    else:
        yield ok(
            "ports",
            f"masquerade ports {ports.masquerade}, NodePorts {ports.node_ports} and ports of the"
            " node's own connections do not overlap",
        )
    in_use = _within(ports.in_use, ports.masquerade)
    if in_use:
        yield note(
            "ports",
            f"programs of this node send from masquerade ports: {some(in_use)}",
            "choose a range without them with --masquerade-ports",
        )
    servers = {("tcp", port) for port in ports.listening - ports.health_checks}
    shadowed = _within({*servers, *ports.in_use}, ports.node_ports)
    if shadowed:
        yield note(
            "ports",
            f"programs of this node use ports of the NodePort range: {some(shadowed)};"
            " a Service with such a NodePort would take their packets",
            "move these programs to other ports",
        )
    if ports.at_cluster_ips:
        yield note(
            "ports",
            "sockets of this node are bound to cluster IPs, and win over the Service on this node:"
            f" {some(list(ports.at_cluster_ips))}",
            "no action needed for NodeLocal DNSCache",
        )


def _within(ports: Iterable[tuple[str, int]], wanted: PortRange) -> list[str]:
    used = sorted((port, name) for name, port in ports if wanted.first <= port <= wanted.last)
    return [f"{name} {port}" for port, name in used]


# -- forwarding ------------------------------------------------------------------------------------

_SYSCTLS = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}
_STRICT = 1


def check_forwarding(forwarding: ForwardingFacts) -> Iterator[Finding]:
    """Check forwarding, the chains that filter it, MTUs and reverse path filters."""
    for family in forwarding.families:
        if family not in forwarding.forwarded:
            yield warning(
                "forwarding",
                f"IPv{family} is not forwarded: Services do not work for pods",
                f"sysctl -w {_SYSCTLS[family]}=1",
            )
        else:
            yield ok("forwarding", f"IPv{family} is forwarded")
    yield from map(_dropping, forwarding.dropping)
    yield from _mtus(forwarding.interfaces)
    strict = [
        interface.name
        for interface in forwarding.interfaces
        if interface.rp_filter == _STRICT and interface.tunnel
    ]
    if strict:
        yield note(
            "rp_filter",
            f"strict on the tunnel {some(strict)}: a packet that arrives there is dropped if the"
            " route to its sender uses another interface, as under kube-proxy",
            f"if replies of nodes go missing: sysctl -w net.ipv4.conf.{strict[0]}.rp_filter=2",
        )


def _dropping(policy: ChainPolicy) -> Finding:
    rules = " and ".join(
        f"{policy.tool} -w -A FORWARD {end} PODS -j ACCEPT" for end in ("-s", "-d")
    )
    return warning(
        "forwarding",
        f"{policy.where} drops what no rule accepts; kube-proxy's rules accepted the traffic of"
        " Services there, bpfsvc has no such rule",
        f"unless another rule accepts it, add: {rules} (PODS: the range of the pods)"
        if policy.tool
        else "add rules there that accept traffic to and from the range of the pods",
    )


def _mtus(interfaces: tuple[Interface, ...]) -> Iterator[Finding]:
    """Translation does not change a packet's length, but it may send it by another interface."""
    tunnels = [interface for interface in interfaces if interface.tunnel]
    uplinks = [interface for interface in interfaces if not (interface.tunnel or interface.pods)]
    pods = [interface for interface in interfaces if interface.pods]
    routes = tunnels or uplinks
    if not pods or not routes:
        return
    narrow = min(routes, key=lambda interface: interface.mtu)
    wide = [interface for interface in pods if interface.mtu > narrow.mtu]
    if wide:
        yield note(
            "mtu",
            f"the MTU of pods' interfaces ({some([pod.name for pod in wide])}:"
            f" {max(pod.mtu for pod in wide)}) is larger than the MTU of {narrow.name}"
            f" ({narrow.mtu}): large packets depend on ICMP",
            f"set the CNI's MTU to {narrow.mtu}",
        )
    else:
        yield ok("mtu", f"the MTU of pods' interfaces fits {narrow.name} ({narrow.mtu})")


# -- the API server --------------------------------------------------------------------------------

_SET_ADDRESS = (
    "set the API server's own address: the server of --kubeconfig, --master,"
    " or KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT in the DaemonSet"
)


def check_api_server(api: ApiServerFacts) -> Iterator[Finding]:
    """Check that the API server is reached without a Service, since bpfsvc makes Services work."""
    if api.error:
        yield refuse("api server", api.error, _SET_ADDRESS)
        return
    if not api.server:
        yield note(
            "api server", "none is configured, so the connection was not tested", _SET_ADDRESS
        )
        return
    if api.is_service:
        yield warning(
            "api server",
            f"{api.server} is the address of a Service: after a reboot it works only from the last"
            " saved snapshot",
            _SET_ADDRESS,
        )
    elif api.from_environment:
        yield note(
            "api server",
            f"{api.server} comes from KUBERNETES_SERVICE_HOST, which is a Service unless it was"
            " overridden",
            f"compare it with: kubectl get service kubernetes; then {_SET_ADDRESS}",
        )
    if api.unreachable:
        yield warning(
            "api server",
            f"{api.server} cannot be reached: {api.unreachable}",
            "check the network; bpfsvc starts from the last saved snapshot and keeps trying",
        )
    elif api.unreachable is not None and not api.is_service:
        yield ok("api server", f"{api.server} can be reached")
