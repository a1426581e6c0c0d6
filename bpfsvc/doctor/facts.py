"""What is looked at, as plain values. ``None`` and "unknown" are facts too, and said as such."""

from __future__ import annotations

from dataclasses import dataclass, field

from bpfsvc.datapath.attachment import Way
from bpfsvc.datapath.sysctls import PortRange
from bpfsvc.doctor.sightings import Guards, Others
from bpfsvc.takeover.running import KubeProxy


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The kernel, and what this process may do.

    * ``release``: as ``uname -r`` says it. ``missing``: kernel features that were refused.
    * ``unprivileged``: what this process lacks, or "". ``jit``: ``net.core.bpf_jit_enable``, None
      where it cannot be read (it belongs to the machine's first network namespace).
    * ``compiler``: whether bcc can be imported.
    """

    release: str
    unprivileged: str = ""
    missing: tuple[str, ...] = ()
    tcx: bool = True
    jit: int | None = 1
    compiler: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """File systems.

    * ``pin_root``: the directory asked for; ``bpffs``: whether it is or would be in a bpf file
      system; ``pin_writable``: whether something can be made there.
    * ``cgroup``: the cgroup2 directory to attach to, "" for none wanted; ``no_cgroup``: why there
      is none; ``nested``: whether it is not the root of its tree.
    * ``sysctls_writable``: whether ``/proc/sys`` can be written.
    """

    pin_root: str
    bpffs: bool = True
    pin_writable: bool = True
    cgroup: str = ""
    no_cgroup: str = ""
    no_cgroup_hint: str = ""
    nested: bool = False
    sysctls_writable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """kube-proxy: whether it runs, and what it left, a line for each."""

    running: KubeProxy = field(default_factory=KubeProxy)
    agent_runs: bool = False
    leftovers: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports wanted, and those in use.

    * ``clash``: what :func:`~bpfsvc.datapath.sysctls.check_ports` says, and its hint; or "".
    * ``listening``: TCP ports of servers. ``calling``: ports that clients chose, and bound UDP
      ports, by protocol (``tcp``, ``udp``).
    * ``reserved``: whether the masquerade ports are reserved already.
    """

    masquerade: PortRange
    node_ports: PortRange
    clash: str = ""
    clash_hint: str = ""
    listening: frozenset[int] = frozenset()
    calling: frozenset[tuple[str, int]] = frozenset()
    reserved: bool = False


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface that would be attached. ``rp_filter``: the one in force (0, 1 strict, 2 loose).

    ``tunnel``: whether it wraps packets; ``pods``: whether it looks like a pod's (a veth,
    and not that of the default route).
    """

    name: str
    mtu: int
    rp_filter: int = 0
    tunnel: bool = False
    pods: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """A chain at FORWARD that drops what nothing accepts.

    ``where`` names it; ``family`` is 4, 6 or 0 for both; ``tool``: the command that adds a rule.
    """

    where: str
    family: int
    tool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """How packets travel.

    ``families``: those of the node's addresses; ``forwarded``: those that are forwarded.
    """

    interfaces: tuple[Interface, ...] = ()
    families: tuple[int, ...] = (4,)
    forwarded: tuple[int, ...] = (4,)
    dropping: tuple[Policy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """The API server.

    * ``server``: its URL, "" if none was given and none is known; ``trouble``: why there is none.
    * ``from_environment``: whether it came from ``KUBERNETES_SERVICE_HOST``.
    * ``is_service``: whether its address is known to be one of a Service.
    * ``unreachable``: why a connection failed, "" if one was made, None if none was tried.
    """

    server: str = ""
    trouble: str = ""
    from_environment: bool = False
    is_service: bool = False
    unreachable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is looked at. ``attach``: how we would; ``priority``: that of our filters."""

    system: System
    places: Places
    others: Others
    proxy: Proxy
    ports: Ports
    forwarding: Forwarding
    api: ApiServer
    attach: Way
    priority: int
    guards: Guards = field(default_factory=Guards)
