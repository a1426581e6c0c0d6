"""The facts about a node, as plain values. "Unknown" is a fact too, and is stored as a value.

Named tuples, because ``bpfsvc run`` imports this module at its start and dataclasses take longer
to make.
"""

from __future__ import annotations

from typing import NamedTuple

from bpfsvc.base.address import family
from bpfsvc.base.attachment import AttachMode
from bpfsvc.base.networks import Network, contains
from bpfsvc.base.ports import PortRange
from bpfsvc.base.protocols import PROTOCOL_NAMES
from bpfsvc.migration.kube_proxy.running import KubeProxyProcess
from bpfsvc.migration.netfilter.iptables import RulesTable
from bpfsvc.migration.netfilter.nftables import Chain
from bpfsvc.services.entries import Frontend, Place

# -- the node --------------------------------------------------------------------------------------


class SystemFacts(NamedTuple):
    """The kernel, and what this process may do.

    * ``release``: as ``uname -r`` prints it. ``missing``: kernel features that were refused.
      ``without``: those of newer kernels that it lacks, a line each; bpfsvc works without them.
    * ``unprivileged``: the capabilities this process lacks, as a sentence, or "".
    * ``jit``: ``net.core.bpf_jit_enable``, None where it cannot be read (it belongs to the
      machine's first network namespace).
    * ``compiler``: True if bcc can be imported. ``shipped``: True if the image carries the compiled
      programs; ``unfit``: why this bpfsvc cannot use those that it carries, or "".
    """

    release: str
    unprivileged: str = ""
    missing: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    tcx: bool = True
    jit: int | None = 1
    compiler: bool = True
    shipped: bool = False
    unfit: str = ""


class FileSystemFacts(NamedTuple):
    """File systems.

    * ``pin_root``: the configured directory. ``bpffs``: True if it is, or would be, in a bpf file
      system; ``mountable``: True if the usual place of one is there and the kernel has it.
      ``pin_writable``: True if files can be made there.
    * ``cgroup``: the cgroup2 directory to attach to, "" if none is wanted. ``no_cgroup``: why there
      is none. ``nested``: True if it is not the root of its tree.
    * ``sysctls_writable``: True if ``/proc/sys`` can be written.
    """

    pin_root: str
    bpffs: bool = True
    mountable: bool = False
    pin_writable: bool = True
    cgroup: str = ""
    no_cgroup: str = ""
    no_cgroup_hint: str = ""
    nested: bool = False
    sysctls_writable: bool = True


class KubeProxyFacts(NamedTuple):
    """kube-proxy: whether it runs, and its leftovers in the kernel, one line each.

    ``agent_runs``: True if an agent of bpfsvc runs here. ``unseen``: what could not be checked.
    """

    running: KubeProxyProcess = KubeProxyProcess()
    agent_runs: bool = False
    leftovers: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


class PortFacts(NamedTuple):
    """The port ranges that bpfsvc would use, and the ports in use.

    * ``clash``: the error of :func:`~bpfsvc.datapath.sysctl.check_ports`, and its hint; or "".
    * ``listening``: TCP ports of servers. ``in_use``: ports that clients chose, and bound UDP
      ports, by protocol (``tcp``, ``udp``).
    * ``health_checks``: the ports of ``listening`` that answer as a ``healthCheckNodePort`` does.
    * ``reserved``: True if the masquerade ports are reserved already.
    * ``at_cluster_ips``: sockets of the node that are bound to a cluster IP.
    """

    masquerade: PortRange
    node_ports: PortRange
    clash: str = ""
    clash_hint: str = ""
    listening: frozenset[int] = frozenset()
    in_use: frozenset[tuple[str, int]] = frozenset()
    health_checks: frozenset[int] = frozenset()
    reserved: bool = False
    at_cluster_ips: tuple[str, ...] = ()


class Interface(NamedTuple):
    """An interface that would be attached.

    * ``rp_filter``: the value in force (0, 1 strict, 2 loose).
    * ``tunnel``: True if it encapsulates packets.
    * ``pods``: True if it looks like a pod's (a veth or netkit without the default route).
    """

    name: str
    mtu: int
    rp_filter: int = 0
    tunnel: bool = False
    pods: bool = False


class ChainPolicy(NamedTuple):
    """A chain at FORWARD that drops what no rule accepts.

    ``where`` names it; ``family`` is 4, 6 or 0 for both; ``tool``: the command that adds a rule.
    """

    where: str
    family: int
    tool: str = ""


class ForwardingFacts(NamedTuple):
    """How packets travel.

    ``families``: the families of the node's addresses; ``forwarded``: the forwarded families.
    """

    interfaces: tuple[Interface, ...] = ()
    families: tuple[int, ...] = (4,)
    forwarded: tuple[int, ...] = (4,)
    dropping: tuple[ChainPolicy, ...] = ()


class ApiServerFacts(NamedTuple):
    """The API server.

    * ``server``: its URL, "" if none is configured. ``error``: why the configuration is unusable.
    * ``from_environment``: True if the URL came from ``KUBERNETES_SERVICE_HOST``.
    * ``is_service``: True if its address is known to be a Service's.
    * ``unreachable``: why a connection failed, "" if one was made, None if none was tried.
    """

    server: str = ""
    error: str = ""
    from_environment: bool = False
    is_service: bool = False
    unreachable: str | None = None


# -- other programs on the node --------------------------------------------------------------------

CILIUM_PINS = (
    "tc/globals/cilium_nodeport_neigh4",
    "tc/globals/cilium_nodeport_neigh6",
    "tc/globals/cilium_lb4_reverse_sk",
    "tc/globals/cilium_lb6_reverse_sk",
    "cilium/socketlb/links/cgroup/cil_sock4_connect",
    "cilium/socketlb/links/cgroup/cil_sock6_connect",
)
"""Pins, below a bpf file system, of a Cilium that replaces kube-proxy."""

ANTREA_SERVICES = "169.254.0.253"
"""The next hop by which Antrea routes Services to its gateway interface."""

POLICY_PINS = {"globals/aws/maps/global_aws_conntrack_map": "the AWS network policy agent"}
"""Pins, below a bpf file system, of programs that enforce network policies -> their name."""


class ForeignProgram(NamedTuple):
    """A program of another owner on an interface.

    ``hook`` is ``ingress``, ``egress`` or ``xdp``; ``attach`` is ``tcx``, ``clsact``, ``xdp`` or
    ``netkit``, which has hooks of its own: before ``ingress``, and after ``egress``.
    ``priority``: a filter's. ``bpfsvc``: True if it belongs to another bpfsvc.
    """

    interface: str
    hook: str
    attach: str
    name: str = ""
    kind: str = "bpf"
    priority: int = 0
    bpfsvc: bool = False


class OthersFacts(NamedTuple):
    """Signs of another program that implements Services.

    * ``devices``: names of the interfaces here. ``attached``: foreign programs on them.
    * ``loaded``: names of programs and maps of the whole machine, None if they cannot be seen.
    * ``pinned``: the paths of :data:`CILIUM_PINS` that exist.
    * ``gateway``: the interface of the route to :data:`ANTREA_SERVICES`, or "".
    """

    devices: frozenset[str] = frozenset()
    attached: tuple[ForeignProgram, ...] = ()
    loaded: frozenset[str] | None = frozenset()
    pinned: frozenset[str] = frozenset()
    gateway: str = ""


CNI_MASQUERADE_TABLE = "cni_plugins_masquerade"
"""The table of nftables of ``ipMasq`` of the CNI plugins bridge and ptp."""


class FastPathFacts(NamedTuple):
    """Rules and programs that inspect or change forwarded packets; the fast path bypasses them.

    * ``devices``: names of the interfaces. ``pinned``: the paths of :data:`POLICY_PINS` that exist.
    * ``tables``: the tables of iptables, each after its flavour.
    * ``chains``: chains of nftables that filter forwarded packets, or masquerade for a CNI plugin.
    * ``ipsec``: number of IPsec policies. ``unseen``: what could not be checked, a sentence each.
    * ``pods``: the ranges of the cluster's pods, as far as they are configured.
    * ``each_packet``: chains of nftables, a sentence each, that have to see each packet of a
      connection. ``tracks``: True if netfilter has connections.
    * ``route_rules``: rules of ``ip rule`` that the fast path does not follow. ``uplinks``: names
      of the interfaces by which packets of other machines come.
    """

    devices: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    tables: tuple[tuple[str, RulesTable], ...] = ()
    chains: tuple[Chain, ...] = ()
    ipsec: int = 0
    unseen: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    each_packet: tuple[str, ...] = ()
    tracks: bool = True
    route_rules: tuple[str, ...] = ()
    uplinks: tuple[str, ...] = ()


class ServedFrontend(NamedTuple):
    """A frontend of a Service.

    ``addresses``: where it answers; the node's own for a NodePort. ``backends``: may be empty.
    """

    service: str
    frontend: Frontend
    addresses: tuple[bytes, ...]
    backends: tuple[Place, ...] = ()


class Match(NamedTuple):
    """One condition on the destination; None and empty stand for any.

    * ``ports``: ranges, both ends included. ``protocols``: names in capitals.
    * ``original``: it looks at the destination that conntrack saw first.
    """

    networks: tuple[Network, ...] | None = None
    ports: tuple[tuple[int, int], ...] | None = None
    protocols: frozenset[str] = frozenset()
    original: bool = False
    negated: bool = False

    @property
    def names_destination(self) -> bool:
        """True if it holds for some destinations only, which it names."""
        return (self.networks is not None or self.ports is not None) and not self.negated

    def covers(self, destination: Place, protocol: str) -> bool:
        """True if it holds for a destination."""
        address, port = destination
        holds = (
            (self.networks is None or any(contains(network, address) for network in self.networks))
            and (self.ports is None or any(first <= port <= last for first, last in self.ports))
            and (not self.protocols or protocol in self.protocols)
        )
        return holds != self.negated


class PacketRule(NamedTuple):
    """A rule of another program, with the conditions of the rules that lead to its chain.

    ``where``: its table and hook; ``text``: as its tool prints it; ``family``: 4, 6, or 0 for both.
    """

    where: str
    text: str
    family: int
    matches: tuple[Match, ...]

    @property
    def names_destination(self) -> bool:
        """True if it is for some destinations only."""
        return any(match.names_destination for match in self.matches)

    def loses(self, served: ServedFrontend) -> bool:
        """True if it applied to packets to a frontend, and does not to packets to its endpoints."""
        port, protocol = served.frontend.port, PROTOCOL_NAMES[served.frontend.protocol]
        if not any(self._covers((address, port), protocol) for address in served.addresses):
            return False
        return not served.backends or not all(
            self._covers(backend, protocol) for backend in served.backends
        )

    def concerns(self, served: ServedFrontend) -> bool:
        """True if it applies to packets that are translated already, to an endpoint at least."""
        protocol = PROTOCOL_NAMES[served.frontend.protocol]
        return any(self._covers(backend, protocol) for backend in served.backends)

    def _covers(self, destination: Place, protocol: str) -> bool:
        if self.family not in (0, family(destination[0])):
            return False
        return all(match.covers(destination, protocol) for match in self.matches)


class FirewallFacts(NamedTuple):
    """Rules that name a destination before it is translated, and the Services here.

    * ``rules``: the rules of other programs. ``from_kube_proxy``: the frontends are kube-proxy's,
      as bpfsvc has written none yet.
    * ``unseen``: what could not be read, a sentence each.
    """

    rules: tuple[PacketRule, ...] = ()
    frontends: tuple[ServedFrontend, ...] = ()
    from_kube_proxy: bool = False
    unseen: tuple[str, ...] = ()


class DroppingRule(NamedTuple):
    """A rule that drops forwarded packets. ``remove``: the command that removes it."""

    rule: PacketRule
    remove: str


class FailingBackends(NamedTuple):
    """Backends of a service port that failed lately for one reason.

    ``failed`` of ``connections`` to ``backends``; ``of``: how many backends the service port has.
    """

    service: str
    backends: tuple[str, ...]
    of: int
    reason: str
    failed: int
    connections: int


class Fullness(NamedTuple):
    """How full something is; ``option``: what enlarges it."""

    name: str
    entries: int
    room: int
    option: str


class TrafficFacts(NamedTuple):
    """What happens to the traffic of Services.

    * ``dropping``: rules that drop forwarded packets. ``frontends``: the Services here.
    * ``failing``: what failed in the last ``seconds``; ``refused``: what was refused, by service
      port and by the field that counts it. ``asked``: True if the agent has said it.
    * ``agent_runs``: True if there is one.
    * ``tables``: tables in which new connections or Services need room.
    """

    dropping: tuple[DroppingRule, ...] = ()
    frontends: tuple[ServedFrontend, ...] = ()
    failing: tuple[FailingBackends, ...] = ()
    refused: tuple[tuple[str, str, int], ...] = ()
    seconds: int = 0
    asked: bool = False
    agent_runs: bool = False
    tables: tuple[Fullness, ...] = ()


class Facts(NamedTuple):
    """All facts. ``attach`` and ``priority``: how bpfsvc would attach its programs."""

    system: SystemFacts
    file_systems: FileSystemFacts
    others: OthersFacts
    kube_proxy: KubeProxyFacts
    ports: PortFacts
    forwarding: ForwardingFacts
    api_server: ApiServerFacts
    attach: AttachMode
    priority: int
    fast_path: FastPathFacts = FastPathFacts()
    firewall: FirewallFacts = FirewallFacts()
    traffic: TrafficFacts = TrafficFacts()
