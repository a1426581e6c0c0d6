"""Collect facts about the node itself: kernel, file systems, kube-proxy, ports, forwarding.

Nothing is changed. Programs of others are in :mod:`~bpfsvc.doctor.collect.others`.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from bpfsvc.base.address import family as family_of
from bpfsvc.base.address import unpack
from bpfsvc.base.errors import BpfsvcError, KernelError, SystemUnfit
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.base.privileges import require_privileges
from bpfsvc.datapath import sysctl
from bpfsvc.datapath.attach import cgroup
from bpfsvc.datapath.loader import features, probe
from bpfsvc.datapath.loader.bytecode_cache import Unusable
from bpfsvc.datapath.loader.shipped import ShippedPrograms
from bpfsvc.datapath.loader.source import load
from bpfsvc.datapath.maps.pins import PinRoot, is_bpffs
from bpfsvc.datapath.netlink.details import read_details
from bpfsvc.datapath.netlink.devices import LOOPBACK, Device, Interfaces, devices_to_attach
from bpfsvc.doctor.facts import (
    ApiServerFacts,
    ChainPolicy,
    FileSystemFacts,
    ForwardingFacts,
    Interface,
    KubeProxyFacts,
    SystemFacts,
)
from bpfsvc.inspect.reader import is_running
from bpfsvc.migration.kube_proxy.ipvs import dummy_addresses
from bpfsvc.migration.kube_proxy.leftovers import Leftovers
from bpfsvc.migration.kube_proxy.running import find_kube_proxy
from bpfsvc.migration.netfilter import tools
from bpfsvc.migration.netfilter.nftables import Listing
from bpfsvc.migration.netfilter.tools import Saved

# -- the kernel and the rights of this process -----------------------------------------------------

_JIT = "net.core.bpf_jit_enable"
_IMPORT_SECONDS = 60
_PYTHONS = (sys.executable, "/usr/bin/python3")


def collect_system(programs: Path | None) -> SystemFacts:
    """Return what the kernel offers this process; ``programs``: where an image carries them."""
    unprivileged = ""
    try:
        require_privileges()
    except SystemUnfit as error:
        unprivileged = error.message
    shipped, unfit = _carried(programs)
    kernel = None if unprivileged else features.of_this_kernel()
    return SystemFacts(
        release=os.uname().release,
        unprivileged=unprivileged,
        missing=() if unprivileged else probe.missing(),
        without=tuple(features.lines(kernel.missing())) if kernel else (),
        tcx=kernel is not None and features.TCX in kernel.has,
        jit=_jit(),
        compiler=any(_has_bcc(python) for python in dict.fromkeys(_PYTHONS)),
        shipped=shipped,
        unfit=unfit,
    )


def _carried(programs: Path | None) -> tuple[bool, str]:
    """Return whether the image carries fitting programs, and why its programs do not fit, or ""."""
    if programs is None:
        return False, ""
    try:
        return ShippedPrograms(programs, load(Sizes()).code_digest).read() is not None, ""
    except Unusable as error:
        return False, str(error)


def _jit() -> int | None:
    try:
        return int(sysctl.read(_JIT))
    except KernelError:
        return None


def _has_bcc(python: str) -> bool:
    """True if bcc can be imported. Tried in a process of its own, as it loads LLVM."""
    try:
        done = subprocess.run(
            [python, "-c", "import bcc"], capture_output=True, timeout=_IMPORT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


# -- file systems ----------------------------------------------------------------------------------

_BPFFS = ("sys", "fs", "bpf")


def collect_file_systems(root: PinRoot, cgroup_root: str | None) -> FileSystemFacts:
    """Return the file systems bpfsvc needs; ``cgroup_root`` is the option as it was given."""
    existing = root.path
    while not existing.exists():
        existing = existing.parent
    directory, error_text, hint = "", "", ""
    try:
        directory = _cgroup(cgroup_root)
    except BpfsvcError as error:
        error_text, hint = error.message, error.hint
    return FileSystemFacts(
        pin_root=str(root.path),
        bpffs=is_bpffs(existing),
        mountable=_is_mountable(root.path),
        pin_writable=os.access(existing, os.W_OK),
        cgroup=directory,
        no_cgroup=error_text,
        no_cgroup_hint=hint,
        # The kernel makes this file in every cgroup but the root of all.
        nested=bool(directory) and Path(directory, "cgroup.type").exists(),
        sysctls_writable=os.access("/proc/sys/net/ipv4/ip_local_reserved_ports", os.W_OK),
    )


def _is_mountable(path: Path) -> bool:
    """True if a bpf file system can be mounted where it usually is, and would hold ``path``."""
    usual = next((parent for parent in path.parents if parent.parts[-3:] == _BPFFS), None)
    known = {line.split()[-1] for line in Path("/proc/filesystems").read_text().splitlines()}
    return usual is not None and usual.is_dir() and "bpf" in known


def _cgroup(given: str | None) -> str:
    if given == "none":
        return ""
    if given is None:
        return str(cgroup.find_cgroup_root())
    cgroup.check_cgroup_root(Path(given))
    return given


# -- kube-proxy ------------------------------------------------------------------------------------


def collect_kube_proxy(root: PinRoot, left: Leftovers) -> KubeProxyFacts:
    """Return the facts about kube-proxy; ``left``: what it left in the kernel."""
    agent_runs = root.path.is_dir() and is_running(root)
    return KubeProxyFacts(
        running=find_kube_proxy(agent_runs=agent_runs),
        agent_runs=agent_runs,
        leftovers=tuple(str(part) for part in left.parts),
        remarks=left.remarks,
        unseen=left.unseen,
    )


# -- forwarding ------------------------------------------------------------------------------------

_TUNNELS = frozenset({"vxlan", "geneve", "ipip", "sit", "gre", "gretap", "ip6tnl", "wireguard"})
_PODS = frozenset({"veth", "netkit"})
_FAMILIES = {"ip": 4, "ip6": 6, "inet": 0}


def collect_forwarding(
    network: Interfaces, patterns: Sequence[str], saved: Saved
) -> ForwardingFacts:
    """Return how packets travel; ``saved`` are the tables of iptables."""
    details = read_details()
    return ForwardingFacts(
        interfaces=tuple(
            Interface(
                device.name,
                details[device.index].mtu,
                _rp_filter(device),
                tunnel=device.kind in _TUNNELS,
                pods=device.kind in _PODS
                and device.index not in (network.default_v4, network.default_v6),
            )
            for device in devices_to_attach(network.devices, patterns)
            if device.index in details
        ),
        families=tuple(sorted(_families(network.devices))),
        forwarded=tuple(family for family in (4, 6) if sysctl.forwards(family)),
        dropping=(*_iptables_policies(saved), *_nftables_policies()),
    )


def _families(devices: Sequence[Device]) -> set[int]:
    """Return the families of global addresses: IPv6 is on everywhere, and used on few nodes."""
    return {
        family_of(held.address)
        for device in devices
        if device.kind not in (LOOPBACK, "dummy")
        for held in device.addresses
        if not held.scope
    }


def _rp_filter(device: Device) -> int:
    """Return the value in force: the kernel takes the larger of two settings."""
    values = [0]
    for scope in ("all", device.name.replace(".", "/")):
        try:
            values.append(int(sysctl.read(f"net.ipv4.conf.{scope}.rp_filter")))
        except KernelError:
            continue
    return max(values)


def _iptables_policies(saved: Saved) -> Iterator[ChainPolicy]:
    for flavour, tables in saved.items():
        for table in tables:
            if table.name == "filter" and table.drops("FORWARD"):
                tool = flavour.restore.rpartition("/")[2].removesuffix("-restore")
                yield ChainPolicy(f"the policy of FORWARD in {flavour}", flavour.family, tool)


def _nftables_policies() -> Iterator[ChainPolicy]:
    if shutil.which("nft"):
        try:
            yield from dropping_chains(tools.nft_list("chains"))
        except KernelError:
            return  # reported already: nft was needed for kube-proxy's tables too


def dropping_chains(listing: Listing) -> Iterator[ChainPolicy]:
    """Yield the chains that drop forwarded packets; iptables' own, listed too, are skipped."""
    for chain in listing.chains:
        if chain.hook != "forward" or chain.policy != "drop":
            continue
        is_iptables = (chain.table, chain.name) == ("filter", "FORWARD")
        if chain.family in _FAMILIES and not is_iptables:
            where = f"the policy of chain {chain.family} {chain.table} {chain.name}"
            yield ChainPolicy(where, _FAMILIES[chain.family])


# -- the API server --------------------------------------------------------------------------------

_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_CONNECT_SECONDS = 3.0


def collect_api_server(
    kubeconfig: Path | None, master: str, network: Interfaces, left: Leftovers
) -> ApiServerFacts:
    """Return where the API server is, and try to connect if it is configured.

    ``left`` and ``network`` are searched for addresses of Services.
    """
    from_environment = kubeconfig is None and not master
    if from_environment and _HOST not in os.environ:
        return ApiServerFacts()
    try:
        server = _in_environment() if from_environment else _server(kubeconfig, master)
    except BpfsvcError as error:
        return ApiServerFacts(error=error.message)
    host, port = _host_and_port(server)
    return ApiServerFacts(
        server=server,
        from_environment=from_environment,
        is_service=is_service(host, network, left),
        unreachable=_connect(host, port),
    )


def is_service(host: str, network: Interfaces, left: Leftovers) -> bool:
    """True if kube-proxy's rules or device say that an address is a Service's."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    match = f" -d {address}/{address.max_prefixlen} "
    rules = (
        rule
        for tables in left.saved.values()
        for table in tables
        for rule in table.rules
        if rule.startswith("-A KUBE-SERVICES ")
    )
    # The keys of its maps; endpoints stand there without a protocol.
    key = rf"(?<![\w.:]){re.escape(str(address))}\s*\.\s*(tcp|udp|sctp)\b"
    return (
        str(address) in map(unpack, dummy_addresses(network))
        or any(match in rule for rule in rules)
        or re.search(key, left.nft_services) is not None
    )


def _in_environment() -> str:
    host = os.environ[_HOST]
    return f"https://{f'[{host}]' if ':' in host else host}:{os.environ.get(_PORT, '443')}"


def _server(kubeconfig: Path | None, master: str) -> str:
    # Imported here: the library takes half a second, and most checks do not need it.
    from bpfsvc.kube.client.connection import connect

    return connect(kubeconfig, master, user_agent="bpfsvc-doctor").server


def _host_and_port(server: str) -> tuple[str, int]:
    parts = urlsplit(server if "//" in server else f"//{server}")
    return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)


def _connect(host: str, port: int) -> str:
    """Return why no connection can be made, or "". The server's answer does not matter."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
