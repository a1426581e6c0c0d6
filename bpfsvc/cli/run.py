"""``bpfsvc run``: the agent of this node."""

from __future__ import annotations

import dataclasses
import functools
import logging
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from bpfsvc import __version__
from bpfsvc.agent import memory, start_log
from bpfsvc.agent.agent import Agent
from bpfsvc.agent.node.fast_path_guard import FastPathGuard
from bpfsvc.agent.servers import Servers, make_metrics
from bpfsvc.base.fast_path import LEVELS_OF_MODE
from bpfsvc.base.privileges import require_privileges
from bpfsvc.cli import flags, kubeproxy_flags, logs, options, shadow
from bpfsvc.cli.bpfsvc_flags import BPFSVC
from bpfsvc.cli.flags import BOOL
from bpfsvc.cli.kubeproxy_flags import KUBE_PROXY
from bpfsvc.cli.server_release import ask_release
from bpfsvc.config.bpfsvc_v1alpha1 import NONE
from bpfsvc.config.config import Config
from bpfsvc.config.loading import CommandLine, Documents, load, make_config
from bpfsvc.config.release import read_release
from bpfsvc.config.watch import ConfigWatch, Reload
from bpfsvc.datapath import conntrack
from bpfsvc.datapath.attach import cgroup
from bpfsvc.datapath.maps.pins import BPF_MOUNT, PinRoot
from bpfsvc.datapath.sysctl import check_ports, reserve_ports
from bpfsvc.kube.event_recorder import ApiEventRecorder, NullEventRecorder

F = TypeVar("F", bound=Callable[..., Any])

_FLAGS = (*KUBE_PROXY, *BPFSVC)

_FIREWALL_SECONDS = 3600.0
"""Seconds between two checks of the firewall's rules; a check takes 1 s of CPU time."""

_log = logging.getLogger("bpfsvc")


def _action(name: str, text: str) -> Callable[[F], F]:
    """Describe an option with which the command does not run the agent."""
    return click.option(
        name, type=BOOL, is_flag=False, flag_value="true", metavar=BOOL.name, help=text
    )


@click.command(
    context_settings={
        "help_option_names": ["-h", "--help"],
        # kube-proxy takes --cluster_cidr for --cluster-cidr.
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="File with a KubeProxyConfiguration and, as a second document, a BpfsvcConfiguration."
    " With a file, only these flags of kube-proxy have an effect: --hostname-override, --master and"
    " the logging flags. bpfsvc's own flags override the file.",
)
@options.master
@click.option(
    "--write-config-to",
    type=click.Path(path_type=Path),
    help="Write the effective configuration, defaults included, as a file for --config, and exit.",
)
@_action(
    "--init-only", "Mount the bpf file system and set sysctls, which needs more rights, and exit."
)
@_action("--cleanup", "Do the same as bpfsvc cleanup, and exit.")
@click.option(
    "--allow-beside",
    is_flag=True,
    help="Start even if another program already implements Services on this node, such as Cilium.",
)
@shadow.add_options
@click.version_option(__version__, message="%(prog)s %(version)s", prog_name="bpfsvc")
@flags.add(_FLAGS)
def run(
    file: Path | None,
    master: str,
    write_config_to: Path | None,
    init_only: bool | None,
    cleanup: bool | None,
    allow_beside: bool,
    **values: Any,
) -> None:
    """Run the agent of this node until SIGTERM. What it loaded into the kernel stays and works."""
    shadow_settings = shadow.take_settings(values, changes=bool(init_only or cleanup))
    given = command_line(values, file=file, master=master)
    documents = load(given, ask_release=ask_release)
    logging_ = documents.kubeproxy.logging
    logs.set_up(logging_.format, logging_.verbosity)
    if write_config_to:
        documents.write(write_config_to)
        return
    if cleanup:
        _clean_up(documents)
        return
    logs.log_exceptions()
    name = options.node_name(documents.kubeproxy.hostname_override or None)
    config = make_config(documents, name, None)
    if shadow_settings:
        _log_remarks(documents)
        click.get_current_context().exit(shadow.run(config, shadow_settings))
    require_privileges()
    if not init_only:
        config = dataclasses.replace(config, cgroup_root=_cgroup_root(documents.bpfsvc.cgroup_root))
    if not allow_beside:
        _refuse_beside_others(config)
    check_ports(config.masquerade_ports, config.node_ports)
    if not init_only:
        start_log.log_start(config)
    _log_remarks(documents)
    if init_only:
        if PinRoot(config.pin_root).mount():
            _log.info("mounted a bpf file system at %s", BPF_MOUNT)
        _set_conntrack(config)
        # The agent recognizes them as its own later: they are the range that it wants.
        reserve_ports(config.masquerade_ports)
        return
    if failure := memory.set_oom_score(config.oom_score_adj):
        _log.debug("%s", failure)
    reload = Reload(given, documents, lambda: agent.stop())
    agent = _agent(config, _given(click.get_current_context().params), reload)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    _run_with_reload(agent, documents, reload)


def _run_with_reload(agent: Agent, documents: Documents, reload: Reload) -> None:
    """Run the agent until it is stopped, or until its configuration file changes."""
    watch = ConfigWatch(documents.file, documents.digest, reload) if documents.file else None
    if watch:
        watch.start()
    try:
        agent.run()
    finally:
        if watch:
            watch.stop()
    reload.check()


def command_line(
    values: Mapping[str, Any], *, file: Path | None = None, master: str = ""
) -> CommandLine:
    """Return the command line, from the values of all flags."""
    return flags.command_line(_FLAGS, kubeproxy_flags.normalized(values), file=file, master=master)


def _given(params: Mapping[str, Any]) -> dict[str, object]:
    """Return the given flags and their values, for /flagz."""
    known = {flag.parameter: flag.value(params) for flag in _FLAGS}
    return {
        name.replace("_", "-"): known.get(name, value) for name, value in params.items() if value
    }


def _agent(config: Config, given: Mapping[str, object], reload: Reload) -> Agent:
    """Return an agent. Only the modules of its own source of objects are imported."""
    memory.use_one_heap()  # before the thread that posts Events
    prepare = functools.partial(_prepare, config)
    if config.manifests:
        from bpfsvc.kube.manifests.directory import ManifestSource

        recorder = NullEventRecorder()
        servers = Servers(config, recorder, make_metrics(config), given)
        files = ManifestSource(config.manifests)
        return Agent(config, files, servers, recorder, _guard(config), prepare)
    from bpfsvc.kube.apiserver import ApiServerSource
    from bpfsvc.kube.client.connection import connect

    # The server of metrics starts after the source is made.
    metrics = make_metrics(config, lambda: source.connections().values())
    connection = connect(
        config.kubeconfig,
        config.master,
        user_agent=f"bpfsvc/{__version__}",
        observer=metrics.api_request if metrics else None,
    )
    events = ApiEventRecorder(connection, config.node_name)
    events.start()
    servers = Servers(config, events, metrics, given)

    def use_version(version: Mapping[str, str]) -> None:
        servers.metrics.api_server_version(version)
        reload.use_release(read_release(version))

    source = ApiServerSource(
        connection,
        config.node_name,
        with_pods=config.cgroup_root is not None and config.socket_lb == "all",
        on_version=use_version,
    )
    return Agent(config, source, servers, events, _guard(config), prepare)


def _refuse_beside_others(config: Config) -> None:
    from bpfsvc.doctor.agent_checks import refuse_beside_others  # needed only at the start

    refuse_beside_others(config.pin_root, config.devices)


def _guard(config: Config) -> FastPathGuard | None:
    """Return the guard of the fast path; None if the fast path is off."""
    if config.fast_path == "off":
        return None
    from bpfsvc.doctor.agent_checks import FastPathCheck

    levels = LEVELS_OF_MODE[config.fast_path]
    return FastPathGuard(FastPathCheck(config.detection.cluster_cidrs, levels).look)


def _clean_up(documents: Documents) -> None:
    from bpfsvc.cli.cleanup import cleanup

    click.get_current_context().invoke(cleanup, pin_root=Path(documents.bpfsvc.pin_root))


def _log_remarks(documents: Documents) -> None:
    for text in documents.warnings:
        _log.warning("%s", text)
    for text in documents.notes:
        _log.info("%s", text)


def _prepare(config: Config) -> None:
    """Set conntrack's sysctls and start the firewall check, once Services work."""
    _set_conntrack(config)
    watch = functools.partial(_watch_firewall, config.pin_root)
    threading.Thread(target=watch, name="firewall", daemon=True).start()


def _watch_firewall(pin_root: Path) -> None:
    """Log firewall rules that no longer see packets to Services, again after each change."""
    from bpfsvc.doctor.agent_checks import lost_firewall_rules

    known, never = "", threading.Event()
    while True:
        lost = lost_firewall_rules(pin_root)
        if lost and lost != known:
            _log.warning("%s", lost)
        known = lost
        never.wait(_FIREWALL_SECONDS)


def _set_conntrack(config: Config) -> None:
    applied = conntrack.apply(config.conntrack.values(conntrack.processors()))
    if applied is None:
        _log.debug("netfilter does not track connections here: its sysctls are left alone")
        return
    if applied.changed:
        _log.info("netfilter: %s", ", ".join(applied.changed))
    if applied.elsewhere:
        _log.debug(
            "netfilter: only the first network namespace sets %s", ", ".join(applied.elsewhere)
        )
    if applied.refused:
        _log.warning("netfilter: cannot set %s", ", ".join(applied.refused))


def _cgroup_root(given: str) -> Path | None:
    if given == NONE:
        return None
    if not given:
        return cgroup.find_cgroup_root()
    path = Path(given)
    cgroup.check_cgroup_root(path)
    return path
