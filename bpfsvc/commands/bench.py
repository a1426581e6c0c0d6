"""``bpfsvc bench``: measure bpfsvc and what it is compared with, on this machine, in labs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from bpfsvc.bench.figures import QUICK, SHORT, SUITES, USUAL, Scale
from bpfsvc.bench.results import MODES, Results
from bpfsvc.errors import BpfsvcError, UsageError

_LAYOUTS = ("iptables", "nftables", "ipvs")


class Several(click.ParamType[Any]):
    """Some of ``names``, with commas between them; ``all`` for all."""

    name = "name,..."

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Check and split; the order is that of ``names``."""
        if isinstance(value, tuple):
            return value
        given = [part.strip() for part in str(value).split(",")]
        if given == ["all"]:
            return tuple(self._names)
        for part in given:
            if part not in self._names:
                self.fail(f"{part!r} is none of {', '.join(self._names)}", param, ctx)
        return tuple(name for name in self._names if name in given)


class Counts(click.ParamType[Any]):
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
@click.option("--quick", is_flag=True, help="Less than three minutes: fewer of everything.")
@click.option(
    "--suites",
    type=Several(SUITES),
    help=f"What to measure, of {', '.join(SUITES)}; {', '.join(USUAL)} if not given.",
)
@click.option(
    "--services",
    type=Counts(30_000),
    help="Sizes of the cluster; if not given "
    f"{','.join(map(str, Scale().services))}, quick {','.join(map(str, QUICK.services))}.",
)
@click.option("--modes", type=Several(MODES), help=f"Of {', '.join(MODES)}; all if not given.")
@click.option("--clients", type=Counts(512), help="How many at once; 1,4,16 if not given, quick 1.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    help=f"{Scale().rounds} if not given, quick {QUICK.rounds}.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    help="Begin nothing that would not be over by then.",
)
@_file("json", "Write all results, for programs and for --from.")
@_file("csv", "Write a line for each thing measured.")
@_file("html", "Write a page with plots, in one file.")
@_file("markdown", "Write the report for a documentation.")
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measure nothing: make reports of what --json wrote.",
)
@click.option(
    "--kube-proxy",
    metavar="BINARY",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measure this kube-proxy too; it gets its objects from an API server of the lab.",
)
@click.option(
    "--kube-proxy-mode",
    "layout",
    type=click.Choice(_LAYOUTS),
    default=_LAYOUTS[0],
    show_default=True,
    help="What it is to write.",
)
def bench(
    quick: bool,
    suites: tuple[str, ...] | None,
    services: tuple[int, ...] | None,
    modes: tuple[str, ...] | None,
    clients: tuple[int, ...] | None,
    rounds: int | None,
    minutes: float | None,
    source: Path | None,
    kube_proxy: Path | None,
    layout: Any,
    **files: Path | None,
) -> None:
    """Measure this machine's ways to a Service: none, kube-proxy's, and those of bpfsvc.

    All of it takes place in network namespaces of its own, needs root, and leaves nothing behind.
    If there is no figure at all, or none of a suite or mode that was named, the exit status is 1.
    """
    wanted = {name.removeprefix("to_"): file for name, file in files.items() if file is not None}
    for file in wanted.values():
        if not file.absolute().parent.is_dir():
            raise UsageError(f"{file} cannot be written: there is no such directory")
    if "html" in wanted:
        # What draws is missed better now than in an hour; it is loaded only when it draws.
        _reports().check_drawing()
    if source is not None:
        results = Results.from_json(source.read_bytes())
    else:
        # An option that was not given is None.
        given: dict[str, Any] = {
            "services": services,
            "modes": modes,
            "clients": clients,
            "rounds": rounds,
            "limit": None if minutes is None else minutes * 60,
        }
        scale = replace(
            QUICK if quick else Scale(),
            **{name: value for name, value in given.items() if value is not None},
        )
        results = _measure(
            suites=suites or (SHORT if quick else USUAL),
            scale=scale,
            quick=quick,
            kube_proxy=kube_proxy and kube_proxy.absolute(),
            layout=layout,
        )
    _report(results, wanted)
    if source is None:
        _check(results, suites or (), modes or ())


def _measure(**wanted: Any) -> Results:
    """Measure in a sandbox, which this process or its successor is in from here on."""
    try:
        from bpfsvc.bench.runs.plan import Plan, measure
    except ModuleNotFoundError as missing:
        raise _lacks(missing) from missing
    return measure(Plan(**wanted))


def _report(results: Results, files: dict[str, Path]) -> None:
    """Show, and write what is asked for; the results themselves first."""
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
    """Fail if there are no figures of what was named; its reports are there by now."""
    from bpfsvc.bench.runs import shortfall

    shortfall.check(results, suites=suites, modes=modes)


def _reports() -> ModuleType:
    try:
        from bpfsvc.bench import report
    except ModuleNotFoundError as missing:
        raise _lacks(missing) from missing
    return report


def _lacks(missing: ModuleNotFoundError) -> BpfsvcError:
    return BpfsvcError(
        f"the benchmark needs a library that is not here: {missing.name}",
        "pip install 'bpfsvc[bench]'",
    )
