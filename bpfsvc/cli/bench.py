"""``bpfsvc bench``: measure bpfsvc and its baselines on testbeds on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import click

from bpfsvc.base.errors import BpfsvcError, UsageError
from bpfsvc.devtools.bench.figures import QUICK, REMOVED, SHORT, SUITES, PodLinks, Scale
from bpfsvc.devtools.bench.modes import KUBE_PROXIES, MODES, RENAMED
from bpfsvc.devtools.bench.results import Results

_LAYOUTS = ("nftables", "iptables")
_REMOVED = dict.fromkeys(REMOVED, f"is measured no more; the suites are {', '.join(SUITES)}")
_RENAMED = {old: f"has another name now: {name}" for old, name in RENAMED.items()}


class NameList(click.ParamType[Any]):
    """Some of ``names``, with commas between them, or ``all``.

    ``refused``: earlier names, each with the reason why it is refused.
    """

    name = "name,..."

    def __init__(self, names: Sequence[str], refused: Mapping[str, str] | None = None) -> None:
        self._names = names
        self._refused = refused or {}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Check and split; the result is in the order of ``names``."""
        if isinstance(value, tuple):
            return value
        given = [part.strip() for part in str(value).split(",")]
        if given == ["all"]:
            return tuple(self._names)
        for part in given:
            if reason := self._refused.get(part):
                self.fail(f"{part!r} {reason}", param, ctx)
            if part not in self._names:
                self.fail(f"{part!r} is none of {', '.join(self._names)}", param, ctx)
        return tuple(name for name in self._names if name in given)


class NumberList(click.ParamType[Any]):
    """Numbers from 1, with commas between them."""

    name = "n,..."

    def __init__(self, most: int) -> None:
        self._most = most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Check, split and sort."""
        if isinstance(value, tuple):
            return value
        parts = str(value).replace(" ", "").split(",")
        if not all(part.isdecimal() and 1 <= int(part) <= self._most for part in parts):
            self.fail(f"{value!r} is no list of numbers from 1 to {self._most:,}", param, ctx)
        return tuple(sorted({int(part) for part in parts}))


def _file(name: str, what: str) -> Callable[..., Any]:
    return click.option(
        f"--{name}",
        f"to_{name}",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help=what,
    )


@click.command()
@click.option(
    "--quick", is_flag=True, help="Measure less of everything, in less than three minutes."
)
@click.option(
    "--suites",
    type=NameList(SUITES, _REMOVED),
    help=f"What to measure: {', '.join(SUITES)}.  [default: all; --quick: {','.join(SHORT)}]",
)
@click.option(
    "--services",
    type=NumberList(30_000),
    help="Numbers of Services in the cluster."
    f"  [default: {','.join(map(str, Scale().services))};"
    f" --quick: {','.join(map(str, QUICK.services))}]",
)
@click.option(
    "--modes",
    type=NameList(MODES, _RENAMED),
    help=f"What to compare: {', '.join(MODES)}. default is bpfsvc as it comes.  [default: all]",
)
@click.option(
    "--clients",
    type=NumberList(512),
    help="Numbers of clients at once.  [default: 1,16; --quick: 1]",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    help=f"How often to measure.  [default: {Scale().rounds}; --quick: {QUICK.rounds}]",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    help="Start no measurement that would not end within this time.",
)
@click.option(
    "--pods",
    type=click.Choice(get_args(PodLinks)),
    default="routed",
    show_default=True,
    help="How nodes reach their pods: by a route to the interface of each, as with Calico, or by a"
    " bridge, as with Flannel.",
)
@click.option(
    "--pin/--no-pin",
    default=True,
    show_default=True,
    help="Keep client, server and the nodes' work on their packets on one CPU. Where the kernel"
    " places them may double the time of a connection.",
)
@click.option(
    "--policies",
    is_flag=True,
    help="Give all nodes the rules of a policy engine, in each mode: nftables accepts established"
    " connections, and new connections to some pods. bpfsvc as it comes then uses the fast path for"
    " established connections.",
)
@_file("json", "Write all results, for programs and for --from.")
@_file("csv", "Write a line for each measurement.")
@_file("html", "Write a page with plots, in one file.")
@_file("markdown", "Write the report as Markdown.")
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measure nothing; make the reports of a file that --json wrote.",
)
@click.option(
    "--kube-proxy",
    metavar="BINARY",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measure this kube-proxy too. It gets its objects from the lab's API server."
    "  [default: kube-proxy in PATH, if there is one]",
)
@click.option(
    "--kube-proxy-mode",
    "layouts",
    type=NameList(tuple(KUBE_PROXIES.values())),
    default=",".join(_LAYOUTS),
    show_default=True,
    help="Modes of that kube-proxy.",
)
def bench(
    quick: bool,
    suites: tuple[str, ...] | None,
    source: Path | None,
    kube_proxy: Path | None,
    layouts: tuple[Any, ...],
    **given: Any,
) -> None:
    """Measure connections to Services: directly to pods, with kube-proxy, and with bpfsvc.

    Everything runs in network namespaces of its own, needs root, and leaves nothing behind. The
    exit status is 1 if there are no results, or none of a suite or mode that was given.
    """
    files = {
        name.removeprefix("to_"): file
        for name, file in given.items()
        if name.startswith("to_") and file is not None
    }
    for file in files.values():
        if not file.absolute().parent.is_dir():
            raise UsageError(f"{file} cannot be written: there is no such directory")
    if "html" in files:
        # Better to fail now than after an hour of measuring.
        _reports().check_plotting()
    if source is not None:
        results = Results.from_json(source.read_bytes())
    else:
        results = _measure(
            suites=suites or (SHORT if quick else SUITES),
            scale=_scale(QUICK if quick else Scale(), given),
            quick=quick,
            kube_proxy=_kube_proxy(kube_proxy),
            layouts=layouts,
        )
    _report(results, files)
    if source is None:
        _check(results, suites or (), given["modes"] or ())


def _scale(usual: Scale, given: Mapping[str, Any]) -> Scale:
    """Return how much to measure; an option that was not given is None."""
    names = ("services", "modes", "clients", "rounds", "pods", "pin", "policies")
    wanted = {name: given[name] for name in names if given[name] is not None}
    if given["minutes"] is not None:
        wanted["limit"] = given["minutes"] * 60
    return replace(usual, **wanted)


def _kube_proxy(given: Path | None) -> Path | None:
    """Return the kube-proxy to measure: the given program, or the program in PATH."""
    binary = given or shutil.which("kube-proxy")
    return Path(binary).absolute() if binary else None


def _measure(**wanted: Any) -> Results:
    """Measure in a sandbox, in which this process, or the one that replaces it, is from now on."""
    try:
        from bpfsvc.devtools.bench.run import RunPlan, measure
    except ModuleNotFoundError as missing:
        raise _missing_library(missing) from missing
    return measure(RunPlan(**wanted))


def _report(results: Results, files: dict[str, Path]) -> None:
    """Print the report, and write the files: the results themselves first."""
    if "json" in files:
        files["json"].write_text(results.to_json() + "\n")
    report = _reports()
    report.terminal(results)
    for name, write in (
        ("csv", report.csv),
        ("markdown", report.markdown),
        ("html", report.html),
    ):
        if name in files:
            files[name].write_text(write(results))


def _check(results: Results, suites: Sequence[str], modes: Sequence[str]) -> None:
    """Raise an error if something that was given has no results. The reports are written by now."""
    from bpfsvc.devtools.bench import shortfall

    shortfall.check(results, suites=suites, modes=modes)


def _reports() -> ModuleType:
    try:
        from bpfsvc.devtools.bench import report
    except ModuleNotFoundError as missing:
        raise _missing_library(missing) from missing
    return report


def _missing_library(missing: ModuleNotFoundError) -> BpfsvcError:
    return BpfsvcError(
        f"the benchmark needs a library that is not installed: {missing.name}",
        "pip install 'bpfsvc[bench]'",
    )
