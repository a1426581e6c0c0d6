"""``bpfsvc run``: the agent of this node."""

from __future__ import annotations

import dataclasses
import logging
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from bpfsvc import __version__
from bpfsvc.agent import Agent
from bpfsvc.announcer import Announcer
from bpfsvc.commands import flags, logs, parameters
from bpfsvc.commands.gotypes import Bool
from bpfsvc.config import Config
from bpfsvc.datapath import conntrack, sockets
from bpfsvc.datapath.sysctls import check_ports, reserve_ports
from bpfsvc.privileges import require_privileges
from bpfsvc.servers import Servers
from bpfsvc.settings import effective, oom
from bpfsvc.settings.changes import ConfigWatch, Reload
from bpfsvc.settings.loading import Settings, load
from bpfsvc.settings.own import NOWHERE

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger("bpfsvc")


def _action(name: str, text: str) -> Callable[[F], F]:
    """Describe an option that makes the command do something else than run."""
    return click.option(
        name, type=Bool(), is_flag=False, flag_value="true", metavar="[=BOOL]", help=text
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
    " Of kube-proxy's flags only --hostname-override, --master and those of logging count beside"
    " it; our own come before what it says.",
)
@click.option(
    "--master", metavar="URL", default="", help="The API server, in place of the kubeconfig's."
)
@click.option(
    "--write-config-to",
    type=click.Path(path_type=Path),
    help="Write what would hold, defaults included, as a file for --config, and end.",
)
@_action("--init-only", "Set sysctls, which needs more privileges than running does, and end.")
@_action("--cleanup", "Do what bpfsvc cleanup does, and end.")
@click.option(
    "--allow-beside",
    is_flag=True,
    help="Start even beside another that does Services, such as Cilium in place of kube-proxy.",
)
@click.version_option(__version__, message="%(prog)s %(version)s", prog_name="bpfsvc")
@flags.settings
def run(
    file: Path | None,
    master: str,
    write_config_to: Path | None,
    init_only: bool | None,
    cleanup: bool | None,
    allow_beside: bool,
    **values: Any,
) -> None:
    """Balance Services on this node until told to stop; what is loaded then stays."""
    given = flags.given(values, file=file, master=master)
    settings = load(given)
    logs.set_up(settings.proxy.logging.format, settings.proxy.logging.verbosity)
    if write_config_to:
        effective.write(settings, write_config_to)
        return
    if cleanup:
        _clean_up(settings)
        return
    name = parameters.node_name(settings.proxy.hostname_override or None)
    config = effective.config(settings, name, None)
    require_privileges()
    if not init_only:
        config = dataclasses.replace(config, cgroup_root=_cgroup_root(settings.own.cgroup_root))
    if not allow_beside:
        _refuse_beside_others(config)
    config = _without_doubt(config)
    check_ports(config.masquerade_ports, config.node_ports)
    _tell(settings)
    _set_conntrack(config)
    if init_only:
        # The agent knows them for its own again: it is the very range that it wants.
        reserve_ports(config.masquerade_ports)
        return
    if trouble := oom.protect(config.oom_score_adj):
        _log.debug("%s", trouble)
    agent = _agent(config, _said(click.get_current_context().params))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    reload = Reload(given, settings, agent.stop)
    watch = ConfigWatch(settings.file, settings.digest, reload) if settings.file else None
    if watch:
        watch.start()
    try:
        agent.run()
    finally:
        if watch:
            watch.stop()
    reload.check()


def _said(params: Mapping[str, Any]) -> dict[str, object]:
    """Give what was said on the command line, for /flagz."""
    return {name.replace("_", "-"): value for name, value in params.items() if value}


def _agent(config: Config, said: Mapping[str, object]) -> Agent:
    """Make an agent. What an API server needs is not loaded for a directory, and vice versa."""
    if config.manifests:
        from bpfsvc.sources.manifests import Manifests

        nobody = Announcer()
        servers = Servers(config, nobody, said)
        return Agent(config, Manifests(config.manifests), servers, nobody, _guard(config))
    from bpfsvc.apiserver.announcements import Announcements
    from bpfsvc.apiserver.connection import connect
    from bpfsvc.apiserver.source import ApiServer

    connection = connect(config.kubeconfig, config.master, user_agent=f"bpfsvc/{__version__}")
    announcer = Announcements(connection, config.node_name)
    servers = Servers(config, announcer, said)
    connection.observer = servers.metrics.asked
    source = ApiServer(
        connection,
        config.node_name,
        with_pods=config.cgroup_root is not None and config.socket_lb == "all",
        on_version=servers.metrics.kubernetes,
    )
    servers.metrics.contacts(lambda: source.contacts().values())
    return Agent(config, source, servers, announcer, _guard(config))


def _refuse_beside_others(config: Config) -> None:
    from bpfsvc.doctor.beside import refuse_beside_others  # what it looks with is needed only here

    refuse_beside_others(config.pin_root, config.devices)


def _guard(config: Config) -> Callable[[], str]:
    """Give what tells past whose guard the fast path would lead packets; "" for nobody."""
    if not config.fast_path:
        return lambda: ""
    from bpfsvc.doctor.beside import fast_path_guard

    return fast_path_guard


def _without_doubt(config: Config) -> Config:
    """Give up the fast path where there is a doubt."""
    if not config.fast_path:
        return config
    from bpfsvc.doctor.beside import fast_path_doubt

    if doubt := fast_path_doubt():
        _log.warning("--fast-path is not used: %s (bpfsvc doctor tells more)", doubt)
        return dataclasses.replace(config, fast_path=False)
    return config


def _clean_up(settings: Settings) -> None:
    from bpfsvc.commands.cleanup import cleanup

    click.get_current_context().invoke(cleanup, pin_root=Path(settings.own.pin_root))


def _tell(settings: Settings) -> None:
    for text in settings.warnings:
        _log.warning("%s", text)
    for text in settings.notes:
        _log.info("%s", text)


def _set_conntrack(config: Config) -> None:
    found = conntrack.apply(config.conntrack)
    if found is None:
        _log.debug("netfilter does not track connections here: its sysctls are left alone")
        return
    if found.changed:
        _log.info("netfilter: %s", ", ".join(found.changed))
    if found.elsewhere:
        _log.debug(
            "netfilter: only the first network namespace sets %s", ", ".join(found.elsewhere)
        )
    if found.refused:
        _log.warning("netfilter: cannot set %s", ", ".join(found.refused))


def _cgroup_root(given: str) -> Path | None:
    if given == NOWHERE:
        return None
    if not given:
        return sockets.find_cgroup_root()
    path = Path(given)
    sockets.check_cgroup_root(path)
    return path
