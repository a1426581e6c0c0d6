"""What tools and files of the node say: its network, its rules, its kernel, and the agent's log."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from bpfsvc import __version__
from bpfsvc.base.errors import BpfsvcError, KernelError
from bpfsvc.base.local_socket import connect, process_of
from bpfsvc.datapath import loaded, sysctl
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.migration.netfilter.tools import run

_SECONDS = 2.0
_LOG_BYTES = 4 << 20
_LOG_LINES = 20_000

POD_LOGS = Path("/var/log/pods")

COMMANDS = {
    "network/interfaces": ("ip", "-details", "-statistics", "link"),
    "network/addresses": ("ip", "address"),
    "network/routes": ("ip", "-4", "route", "show", "table", "all"),
    "network/routes6": ("ip", "-6", "route", "show", "table", "all"),
    "network/rules": ("ip", "-4", "rule"),
    "network/rules6": ("ip", "-6", "rule"),
    "network/neighbours": ("ip", "neighbour"),
    "network/filters": ("tc", "-statistics", "qdisc", "show"),
    "rules/nftables": ("nft", "list", "ruleset"),
    "rules/iptables-nft": ("iptables-nft-save",),
    "rules/ip6tables-nft": ("ip6tables-nft-save",),
    "rules/iptables-legacy": ("iptables-legacy-save",),
    "rules/ip6tables-legacy": ("ip6tables-legacy-save",),
    "rules/ipvs": ("ipvsadm", "--save", "--numeric"),
    "rules/ipset": ("ipset", "save"),
    "kernel/programs": ("bpftool", "prog", "show"),
    "kernel/maps": ("bpftool", "map", "show"),
    "kernel/links": ("bpftool", "link", "show"),
    "kernel/attached": ("bpftool", "net", "show"),
}
"""Name of the part -> the command whose output it is."""

_SYSCTLS = (
    "net.ipv4.ip_forward",
    "net.ipv6.conf.all.forwarding",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.bridge.bridge-nf-call-iptables",
    "net.netfilter.nf_conntrack_max",
    "net.netfilter.nf_conntrack_count",
    "net.core.bpf_jit_enable",
    "kernel.unprivileged_bpf_disabled",
)


def output_of(command: tuple[str, ...]) -> str:
    """Return the output of a command; raise :class:`BpfsvcError` if there is none."""
    if shutil.which(command[0]) is None:
        raise BpfsvcError(f"{command[0]} is not installed here")
    return run([*command])


def kernel_text(root: PinRoot) -> str:
    """Return versions, what the kernel has, and what of bpfsvc is in it."""
    return "\n".join((*_versions(), *_sysctls(), *_pins(root), *_loaded())) + "\n"


def _versions() -> Iterator[str]:
    yield f"bpfsvc {__version__}"
    yield f"python {platform.python_version()}"
    yield f"uname {' '.join(platform.uname())}"
    yield f"btf {'yes' if Path('/sys/kernel/btf/vmlinux').exists() else 'no'}"
    with suppress(OSError):
        for line in file_text("/etc/os-release").splitlines():
            if line.startswith("PRETTY_NAME="):
                yield f"system {line.partition('=')[2]}"


def _sysctls() -> Iterator[str]:
    for name in _SYSCTLS:
        try:
            yield f"{name} = {sysctl.read(name)}"
        except KernelError:
            yield f"{name} is not here"


def _pins(root: PinRoot) -> Iterator[str]:
    for path in sorted(root.path.rglob("*")):
        if not path.is_dir():
            yield f"pinned {path}"


def _loaded() -> Iterator[str]:
    named: dict[str, Callable[[], frozenset[str] | None]] = {
        "program": loaded.program_names,
        "map": loaded.map_names,
    }
    for kind, names in named.items():
        listed = names()
        if listed is None:
            yield f"the names of all loaded {kind}s cannot be seen with these rights"
        yield from sorted(f"{kind} {name}" for name in listed or () if name.startswith("bpfsvc"))


def file_text(path: str) -> str:
    """Return the content of a file; raise ``OSError`` if it cannot be read."""
    return Path(path).read_text(errors="replace")


def agents_log(root: PinRoot) -> str:
    """Return the last lines of the agent's log; raise :class:`BpfsvcError` if there are none."""
    try:
        with connect(root.path, _SECONDS) as client:
            process = process_of(client)
        target = Path(f"/proc/{process}/fd/2").resolve()
        if target.is_file():
            return _tail(target)
    except OSError:
        process, target = 0, Path()
    # A unit of systemd writes to a socket, a container to a pipe.
    sources: list[Callable[[], str]] = [_pods_log, partial(_journal, process)]
    for source in sources[::-1] if target.name.startswith("socket:") else sources:
        if lines := source():
            return lines
    raise BpfsvcError(
        f"the agent (process {process}) writes its log to {target.name}, which cannot be read"
        " here; kubectl logs shows that of a Pod"
        if process
        else "no agent answers here, and there is no log of a Pod or in the journal"
    )


def _pods_log() -> str:
    """Return the log that a container of a Pod of bpfsvc has written to last."""
    written = {path.stat().st_mtime: path for path in POD_LOGS.glob("*bpfsvc*/*/*.log")}
    return _tail(written[max(written)]) if written else ""


def _journal(process: int) -> str:
    if not shutil.which("journalctl"):
        return ""
    of_agent = (f"_PID={process}",) if process else ("--unit=bpfsvc",)
    text = run(["journalctl", "--no-pager", f"--lines={_LOG_LINES}", *of_agent])
    return "" if "-- No entries --" in text else text


def _tail(path: Path) -> str:
    """Return the last whole lines."""
    with path.open("rb") as file:
        begin = max(0, path.stat().st_size - _LOG_BYTES)
        file.seek(begin)
        if begin:
            file.readline()
        return file.read().decode(errors="replace")
