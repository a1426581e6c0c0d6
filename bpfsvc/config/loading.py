"""From a file and flags to both documents, complete and checked; from the documents to ``Config``.

As in kube-proxy, a file replaces the flags: only a few of kube-proxy's flags count beside it. Flags
of bpfsvc's own override the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bpfsvc.base import yaml_documents
from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, address_and_port, pack
from bpfsvc.base.errors import UsageError
from bpfsvc.base.service_series import parse_service_series
from bpfsvc.base.yaml_documents import FieldPath
from bpfsvc.config import bpfsvc_v1alpha1, documents, kubeproxy_v1alpha1, notes, scheduler
from bpfsvc.config.bpfsvc_v1alpha1 import BpfsvcConfiguration
from bpfsvc.config.config import Config, Conntrack, HistorySettings, Lifetimes, ProxyMode
from bpfsvc.config.durations import Duration
from bpfsvc.config.fields import FieldError, Findings, Flag, fit, overlay, plain_values
from bpfsvc.config.kubeproxy_v1alpha1 import KubeProxyConfiguration
from bpfsvc.config.local_detector import LocalDetector, Mode
from bpfsvc.config.release import AskRelease, Release, mode_of_empty
from bpfsvc.model import path_text

_BESIDE_A_FILE = ("hostnameOverride", "logging")
"""Fields with flags that count beside a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """The configuration on the command line.

    * ``file``: the file of ``--config``.
    * ``kubeproxy``, ``bpfsvc``: flags that set fields of either document.
    * ``ignored``: flags that were given and set no field.
    * ``names``: the flag of every field of kube-proxy's document that has one.
    """

    file: Path | None = None
    master: str = ""
    kubeproxy: tuple[Flag, ...] = ()
    bpfsvc: tuple[Flag, ...] = ()
    ignored: tuple[str, ...] = ()
    names: Mapping[FieldPath, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Both documents, with every default filled in.

    * ``digest``: of the content of the file.
    * ``warnings``: unknown and repeated fields, each with its line.
    * ``notes``: what was given and has no effect, or less than it seems.
    * ``release``: of the API server, if it matters and is known.
    * ``mode_is_empty``: the file says that there is no mode; the release tells what that means.
    """

    kubeproxy: KubeProxyConfiguration
    bpfsvc: BpfsvcConfiguration
    file: Path | None
    digest: str
    master: str
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    release: Release | None = None
    mode_is_empty: bool = False

    def plain(self) -> dict[str, dict[str, Any]]:
        """Return both as a file would hold them, by the group of their API."""
        values = (
            (kubeproxy_v1alpha1.API_VERSION, kubeproxy_v1alpha1.KIND, self.kubeproxy),
            (bpfsvc_v1alpha1.API_VERSION, bpfsvc_v1alpha1.KIND, self.bpfsvc),
        )
        return {
            version.partition("/")[0]: {
                "apiVersion": version,
                "kind": kind,
                **plain_values(document),
            }
            for version, kind, document in values
        }

    def write(self, path: Path) -> None:
        """Write both as a file that ``--config`` accepts. Raises ``UsageError``."""
        try:
            path.write_text(yaml_documents.write(*self.plain().values(), sort_keys=True))
        except OSError as error:
            raise UsageError(
                f"cannot write {path}: {error.strerror}", "name another file with --write-config-to"
            ) from error


def load(
    given: CommandLine,
    read: Callable[[Path], documents.File] = documents.read,
    ask_release: AskRelease = lambda *_: None,
    beneath: documents.File = documents.NOTHING,
) -> Documents:
    """Return both documents, complete. Raises ``UsageError`` that names every wrong field.

    ``beneath``: what counts without a file, beneath the flags.
    """
    file = read(given.file) if given.file else beneath
    flags, void = _counting(given)
    kubeproxy, unknown, errors = _kubeproxy(file.kubeproxy, flags, given.names)
    bpfsvc, more_errors = _bpfsvc(file.bpfsvc, given.bpfsvc)
    if errors or more_errors:
        raise UsageError(
            "; ".join((*errors, *more_errors)), "docs/configuration.md has every field and flag"
        )
    mode_is_empty = file.kubeproxy.fields.get("mode") == ""
    release = None
    if mode_is_empty and not bpfsvc.manifests:
        release = ask_release(kubeproxy.client_connection.kubeconfig, given.master)
    empty = mode_of_empty(release) if mode_is_empty else None
    settled = kubeproxy_v1alpha1.settle_mode(kubeproxy, empty)
    without_effect = notes.without_effect(
        kubeproxy, _namer(flags), schedules=scheduler.uses_ipvs(bpfsvc, settled)
    )
    return Documents(
        kubeproxy=settled,
        bpfsvc=bpfsvc,
        file=given.file,
        digest=file.digest,
        master=given.master,
        warnings=(
            *(f"{location}: unknown field, ignored" for location in unknown),
            *(f"{location}: given twice, the last one counts" for location in file.repeated),
            *bpfsvc_v1alpha1.warnings(bpfsvc),
            *scheduler.warnings(bpfsvc, settled, _namer(flags)(notes.SCHEDULER)),
        ),
        notes=(
            *notes.sentence("without effect here", (*without_effect, *given.ignored)),
            *notes.sentence("ignored beside --config", void),
            *notes.about_mode(release, is_empty=mode_is_empty),
            *notes.about_node_ports(settled),
        ),
        release=release,
        mode_is_empty=mode_is_empty,
    )


def _counting(given: CommandLine) -> tuple[tuple[Flag, ...], list[str]]:
    """Return kube-proxy's flags that count, and the names of flags that a file makes void."""
    if given.file is None:
        return given.kubeproxy, []
    kept = tuple(flag for flag in given.kubeproxy if flag.path[0] in _BESIDE_A_FILE)
    return kept, sorted({flag.name for flag in given.kubeproxy if flag not in kept})


def _kubeproxy(
    source: documents.FileDocument, flags: tuple[Flag, ...], names: Mapping[FieldPath, str]
) -> tuple[KubeProxyConfiguration, list[str], list[str]]:
    """Return the document, the places of unknown fields, and the errors."""
    findings = Findings()
    by_path = {flag.path: flag.name for flag in flags}
    fitted = fit(overlay(source.fields, flags), KubeProxyConfiguration, findings, by_path)
    document = kubeproxy_v1alpha1.complete(fitted)
    errors = (*findings.errors, *kubeproxy_v1alpha1.check(document))
    unknown = [source.place(path) for path in findings.unknown]
    named = by_path if source.yaml else {**names, **by_path}
    return document, unknown, _with_places(errors, source, named)


def _bpfsvc(
    source: documents.FileDocument, flags: tuple[Flag, ...]
) -> tuple[BpfsvcConfiguration, list[str]]:
    """Return the document and the errors; unknown fields are errors here."""
    findings = Findings()
    document = fit(overlay(source.fields, flags), BpfsvcConfiguration, findings)
    unknown = (FieldError(path, "unknown field") for path in findings.unknown)
    errors = (*findings.errors, *bpfsvc_v1alpha1.check(document), *unknown)
    named = {flag.path: flag.name for flag in flags}
    if errors:
        return document, _with_places(errors, source, named)
    return bpfsvc_v1alpha1.complete(document), []


def _with_places(
    errors: Iterable[FieldError], source: documents.FileDocument, flags: Mapping[FieldPath, str]
) -> list[str]:
    """Name each field by its flag, or else by its line and path."""

    def location(path: FieldPath) -> str:
        ends = range(len(path), 0, -1)
        named = (flags[path[:end]] for end in ends if path[:end] in flags)
        return next(named, "") or source.place(path)

    return [f"{location(path)}: {reason}" for path, reason in errors]


def _namer(flags: tuple[Flag, ...]) -> Callable[[FieldPath], str]:
    """Return a function that names a field by the flag that set it, or else by its path."""
    by_path = {flag.path: flag.name for flag in flags}
    return lambda path: by_path.get(path) or path_text(path)


def make_config(given: Documents, node_name: str, cgroup_root: Path | None) -> Config:
    """Return the settings of an agent; ``cgroup_root``: of this machine."""
    kubeproxy, bpfsvc = given.kubeproxy, given.bpfsvc
    xdp = tuple(pattern for pattern in bpfsvc.xdp if pattern != bpfsvc_v1alpha1.OFF)
    conntrack = _conntrack(kubeproxy.conntrack, sees_all=not xdp)
    return Config(
        manifests=_given_path(bpfsvc.manifests),
        kubeconfig=_given_path(kubeproxy.client_connection.kubeconfig),
        master=given.master,
        last_good=None if bpfsvc.manifests else _path(bpfsvc.last_good),
        patience_seconds=bpfsvc.last_good_after.seconds,
        history=HistorySettings(_path(bpfsvc.history), bpfsvc.history_megabytes),
        node_name=node_name,
        mode=cast(ProxyMode, kubeproxy.mode),
        detection=_detection(kubeproxy),
        masquerade_all=kubeproxy_v1alpha1.masquerade_all(kubeproxy),
        scheduler=scheduler.effective(bpfsvc, kubeproxy),
        source_ranges_for_all=bpfsvc.source_ranges_for_all,
        allow_external_ips=kubeproxy.feature_gates.get(kubeproxy_v1alpha1.EXTERNAL_IPS, True),
        vip_echo=_vip_echo(bpfsvc, kubeproxy),
        nodeport_addresses=tuple(kubeproxy.node_port_addresses),
        localhost_nodeports=kubeproxy.iptables.localhost_node_ports,
        node_ports=bpfsvc_v1alpha1.ports(bpfsvc.service_node_port_range),
        address_override=_address_override(kubeproxy.bind_address),
        pin_root=Path(bpfsvc.pin_root),
        cache=_path(bpfsvc.cache),
        programs=_path(bpfsvc.programs),
        cgroup_root=cgroup_root,
        socket_lb=bpfsvc.socket_lb,
        mesh_ports=tuple(bpfsvc.mesh_ports),
        devices=tuple(bpfsvc.devices),
        fast_path=bpfsvc.fast_path,
        xdp=xdp,
        attach=bpfsvc.attach,
        tc_priority=bpfsvc.tc_priority,
        masquerade_ports=bpfsvc_v1alpha1.ports(bpfsvc.masquerade_ports),
        sizes=bpfsvc.sizes(),
        lifetimes=_lifetimes(conntrack),
        conntrack=conntrack,
        oom_score_adj=kubeproxy.oom_score_adj,
        healthz=address_and_port(kubeproxy.healthz_bind_address or ""),
        metrics=address_and_port(kubeproxy.metrics_bind_address or ""),
        ui=bpfsvc_v1alpha1.ui_address(bpfsvc.ui_bind_address),
        metrics_services=parse_service_series(bpfsvc.metrics_services),
        count_drops_elsewhere=bpfsvc.count_drops_elsewhere,
        bind_address_hard_fail=kubeproxy.bind_address_hard_fail,
        sync_seconds=kubeproxy_v1alpha1.sync_period(kubeproxy).seconds,
        profiling=kubeproxy.enable_profiling,
        document=given.plain(),
    )


def _given_path(text: str) -> Path | None:
    return Path(text) if text else None


def _detection(kubeproxy: KubeProxyConfiguration) -> LocalDetector:
    return LocalDetector(
        mode=cast(Mode, kubeproxy.detect_local_mode),
        cluster_cidrs=kubeproxy_v1alpha1.cluster_cidrs(kubeproxy),
        bridge=kubeproxy.detect_local.bridge_interface,
        prefix=kubeproxy.detect_local.interface_name_prefix,
    )


def _vip_echo(bpfsvc: BpfsvcConfiguration, kubeproxy: KubeProxyConfiguration) -> bool:
    """Return whether pings are answered; by default as kube-proxy's mode does it."""
    if bpfsvc.vip_echo == "auto":
        return kubeproxy.mode == "ipvs"
    return bpfsvc.vip_echo in ("on", True)


def _path(text: str) -> Path | None:
    return Path(text) if text and text != bpfsvc_v1alpha1.NONE else None


def _address_override(text: str) -> tuple[bytes, ...]:
    address = pack(text)
    return () if address in (ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6) else (address,)


def _conntrack(given: kubeproxy_v1alpha1.Conntrack, *, sees_all: bool) -> Conntrack:
    """Return the settings of netfilter.

    ``sees_all``: no packet bypasses netfilter. Otherwise later packets of a connection look as if
    outside its TCP window, and rules that drop invalid packets would end long transfers.
    """
    return Conntrack(
        max_per_core=given.max_per_core,
        min=given.min,
        tcp_established=_seconds(given.tcp_established_timeout),
        tcp_close_wait=_seconds(given.tcp_close_wait_timeout),
        tcp_be_liberal=given.tcp_be_liberal or not sees_all,
        udp=_seconds(given.udp_timeout),
        udp_stream=_seconds(given.udp_stream_timeout),
    )


def _seconds(given: Duration) -> int:
    return int(given.seconds)


def _lifetimes(conntrack: Conntrack) -> Lifetimes:
    """Return lifetimes of our own connections: netfilter's, or the default for zero."""
    default = Lifetimes()
    return Lifetimes(
        tcp_established=conntrack.tcp_established or default.tcp_established,
        tcp_half_closed=conntrack.tcp_close_wait or default.tcp_half_closed,
        udp=conntrack.udp_stream or conntrack.udp or default.udp,
    )
