"""How the demonstration looks: in a terminal with colours and progress, in a pipe as plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from bpfsvc.devtools.demo.traffic import DemoCheck

_BAR = 16
_PLAIN_WIDTH = 120
_COLOURS = ("cyan", "magenta", "yellow", "blue", "green")


class Screen:
    """Prints, and shows how far it is; a context manager."""

    def __init__(self, steps: int) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = _PLAIN_WIDTH
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._progress.add_task("", total=steps)
        self._colours: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def step(self, doing: str) -> Iterator[None]:
        """Show a step while it runs; one step of the progress."""
        self._progress.update(self._task, description=doing)
        yield
        self._progress.advance(self._task)

    def headline(self, text: str, passed: bool | None = None) -> None:
        """Print a title, with a verdict if there is one."""
        line = Text(text, "bold")
        if passed is not None:
            line = Text.assemble(_verdict(passed), "  ", line)
        self.console.print(line)

    def note(self, text: str) -> None:
        """Print a line about an event."""
        self.console.print(Text(f"      {text}", "dim"), no_wrap=True, crop=False)

    def section(self, title: str, checks: list[DemoCheck]) -> None:
        """Print a title with its verdict, and each check."""
        self.headline(title, all(check.passed for check in checks))
        for check in checks:
            self.check(check)

    def check(self, check: DemoCheck) -> None:
        """Print the checks: who answered, and the faults."""
        line = Text.assemble(
            "      ",
            ("✓" if check.passed else "✗", _colour(check.passed)),
            f" {check.sentence:<36}",
        )
        line.append_text(self._bars(check.shares))
        self.console.print(line, no_wrap=True)
        for fault in check.faults:
            self.console.print(Text(f"          {fault}", "red"))

    def _bars(self, shares: Counter[str]) -> Text:
        bars = Text()
        total = shares.total()
        for pod, count in sorted(shares.items()):
            part = count / total
            colour = self._colours.setdefault(pod, _COLOURS[len(self._colours) % len(_COLOURS)])
            bars.append(f"  {pod} ")
            filled = round(part * _BAR)
            bars.append("█" * filled, colour)
            bars.append("░" * (_BAR - filled) + f" {part:4.0%}", "dim")
        return bars

    def text(self, title: str, text: str) -> None:
        """Print the output of a command."""
        self.console.print(Text(f"# {title}", "bold"))
        self.console.print(Text(text), soft_wrap=not self.console.is_terminal, no_wrap=True)
        self.console.print()

    def go_on(self, title: str, commands: list[tuple[str, str]]) -> None:
        """Print commands to go on with, each with what it shows."""
        self.console.print(Text(title, "bold"))
        for what, command in commands:
            self.console.print(Text(f"  # {what}", "dim"))
            self.console.print(Text(f"  {command}"), soft_wrap=True)

    def summary(self, rows: list[tuple[str, list[DemoCheck]]], seconds: float) -> None:
        """Print the closing table."""
        table = Table(title_justify="left")
        table.add_column("")
        table.add_column("checks", justify="right")
        table.add_column("requests", justify="right")
        table.add_column("verdict")
        for title, checks in rows:
            table.add_row(
                title,
                str(len(checks)),
                str(sum(check.requests for check in checks)),
                _verdict(all(check.passed for check in checks)),
            )
        self.console.print(table)
        failed = sum(not check.passed for _, checks in rows for check in checks)
        verdict = f"{failed} check{'s' * (failed > 1)} failed" if failed else "everything passed"
        self.console.print(Text(f"{verdict} in {seconds:.1f} s", _colour(not failed)))


def _verdict(passed: bool) -> Text:
    return Text("pass" if passed else "FAIL", f"bold {_colour(passed)}")


def _colour(passed: bool) -> str:
    return "green" if passed else "red"
