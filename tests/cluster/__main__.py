"""``python -m tests.cluster``: the cluster's commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from rich.console import Console

from bpfsvc.base.errors import BpfsvcError
from tests.cluster import images, product, running, suites
from tests.cluster.cgroups import CGROUPS, of_machine
from tests.cluster.cluster import Cluster
from tests.cluster.e2e import expected, junit
from tests.cluster.errors import ClusterError
from tests.cluster.network import HOSTS, unused_prefix
from tests.cluster.report import Report
from tests.cluster.settings import CNIS, FOLDER, PREFIX, PROXIES, Settings

_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    default=FOLDER,
    show_default="build/cluster",
    help="All that the cluster writes.",
)
_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def commands() -> None:
    """A real Kubernetes cluster on this machine (docs/cluster.md)."""


@commands.command()
@click.argument("kubernetes", type=click.Path(path_type=Path, resolve_path=True))
@_folder
@click.option("--prefix", default=PREFIX, show_default=True, help="Of namespaces and cgroups.")
@click.option("--cni", type=click.Choice(CNIS), default="bridge", show_default=True)
@click.option(
    "--cgroups",
    type=click.Choice(CGROUPS),
    default=of_machine,
    show_default="the machine's",
)
@click.option(
    "--proxy",
    type=click.Choice(PROXIES),
    default="plain",
    show_default=True,
    help="What serves Services: bpfsvc by one of its overlays, kube-proxy, or nothing.",
)
def up(kubernetes: Path, folder: Path, prefix: str, cni: str, cgroups: str, proxy: str) -> None:
    """Start a cluster with the programs in the folder KUBERNETES, and leave it."""
    settings = Settings(
        kubernetes=kubernetes,
        folder=folder,
        prefix=prefix,
        cni=next(each for each in CNIS if each == cni),
        cgroups=next(cgroup for cgroup in CGROUPS if cgroup == cgroups),
    )
    cluster = Cluster(settings)
    cluster.up(next(each for each in PROXIES if each == proxy))
    click.echo(_look_around(cluster))


def _look_around(cluster: Cluster) -> str:
    option = "" if cluster.settings.folder == FOLDER else f" --folder={cluster.settings.folder}"
    command = f"{Path(sys.executable).name} -m tests.cluster"
    return f"""{cluster.kubectl("get", "nodes", "-o", "wide").rstrip()}

The cluster is up. For a look around:
  {command} kubectl{option} get pods -A
  {command} enter{option} n1 bash
  logs: {cluster.settings.state}
It ends by: {command} down{option}"""


@commands.command()
@_folder
def down(folder: Path) -> None:
    """End the cluster, also one that came up in part; programs, images and results stay."""
    try:
        cluster = Cluster.in_folder(folder)
    except ClusterError as error:
        click.echo(error.message)
    else:
        cluster.down()


@commands.command()
@click.argument("kubernetes", type=click.Path(path_type=Path, resolve_path=True))
@_folder
@click.option("--all", "whole", is_flag=True, help="All suites and all their cases: hours.")
@click.option(
    "--suite",
    "names",
    multiple=True,
    type=click.Choice([*suites.SUITES]),
    help="Only this one; may be repeated.",
)
def test(kubernetes: Path, folder: Path, whole: bool, names: tuple[str, ...]) -> None:
    """Test bpfsvc on a cluster: that in the folder, or those that come up for it and end after it.

    The exit status is 1 if a case failed. All results are in the folder "results".
    """
    report = Report(folder / "results")
    wanted = suites.wanted(names, whole)
    try:
        cluster = Cluster.in_folder(folder)
    except ClusterError:
        cluster = None
    try:
        if cluster is None:
            settings = Settings(kubernetes=kubernetes, folder=folder, prefix=unused_prefix())
            running.run_all(settings, report, wanted, whole)
        else:
            cluster.build_bpfsvc()
            running.run_on(cluster, report, wanted, whole)
    finally:
        report.show(Console(width=160))
    if report.failed:
        raise ClusterError("cases failed, see above", f"logs: {report.folder}")


@commands.command()
@_folder
def record(folder: Path) -> None:
    """Write what the e2e specs did in the last runs into the table of what is expected of them.

    The suite "kube-proxy" says what kube-proxy passes, "default" what bpfsvc does.
    """
    table = expected.load()
    measured: dict[str, expected.Proxy] = {
        suites.BASELINE: "kube_proxy",
        suites.DEFAULT: "bpfsvc",
    }
    for suite, proxy in measured.items():
        reports = sorted(folder.glob(f"results/{suite}/*/junit*.xml"))
        table = expected.measured(table, junit.read(reports), proxy)
    expected.save(table.values())


@commands.command("images", hidden=True)
@click.argument("folder", type=click.Path(path_type=Path, resolve_path=True))
def make_images(folder: Path) -> None:
    """Make the images of a cluster that comes up; "up" runs this beside its other work."""
    images.make(Settings.saved(folder))


@commands.command("bpfsvc-image", hidden=True)
@click.argument("folder", type=click.Path(path_type=Path, resolve_path=True))
def build_bpfsvc(folder: Path) -> None:
    """Build bpfsvc's image for a cluster that comes up; "up" runs this beside its other work."""
    product.build_image(Settings.saved(folder))


@commands.command(context_settings=_PASSED_ON)
@_folder
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def kubectl(folder: Path, words: tuple[str, ...]) -> None:
    """Run kubectl as the cluster's administrator."""
    cluster = Cluster.in_folder(folder)
    _replace(cluster.popen(cluster.kubectl_words(*words)).wait())


@commands.command(context_settings=_PASSED_ON)
@_folder
@click.argument("machine", type=click.Choice([host.name for host in HOSTS]))
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED)
def enter(folder: Path, machine: str, words: tuple[str, ...]) -> None:
    """Run a command on a node, or in the network of "api" or "outside"."""
    _replace(Cluster.in_folder(folder).popen(words, on=machine).wait())


def _replace(status: int) -> None:
    sys.exit(status if status >= 0 else 128 - status)


def main() -> None:
    """Run a command; an error for people is one line."""
    os.environ.pop("KUBECONFIG", None)
    try:
        commands()
    except BpfsvcError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
