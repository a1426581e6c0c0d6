"""``python -m bpfsvc.bench [SUITE ...]``: measure, in a sandbox, and report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from bpfsvc.bench.change import change
from bpfsvc.bench.churn import churn
from bpfsvc.bench.figures import Scale, Suite
from bpfsvc.bench.flood import flood
from bpfsvc.bench.latency import connect, latency
from bpfsvc.bench.report import as_json, as_table, machine
from bpfsvc.bench.start import start
from bpfsvc.errors import BpfsvcError
from bpfsvc.lab import sandbox

SUITES: dict[str, Suite] = {
    "latency": latency,
    "connect": connect,
    "change": change,
    "churn": churn,
    "start": start,
    "flood": flood,
}
_ALL = ("latency", "change", "churn", "start", "flood")


def main(words: Sequence[str]) -> None:
    """Run the suites that are asked for, all if none is."""
    chosen = _parser().parse_args(words)
    scale = _scale(chosen)
    results = {}
    for name in chosen.suites or _ALL:
        results[name] = SUITES[name](scale, _say)
        if chosen.output == "table":
            print(as_table(name, results[name]), flush=True)
    if chosen.output == "json":
        print(as_json(results, scale))
    else:
        print(", ".join(f"{key} {value}" for key, value in machine().items()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bpfsvc.bench", description="Measure bpfsvc, in labs of its own."
    )
    usual = Scale()
    parser.add_argument(
        "suites",
        metavar="SUITE",
        nargs="*",
        type=_suite,
        help=f"{', '.join(SUITES)}; all if none is given",
    )
    parser.add_argument("--rounds", type=_positive, help=f"default {usual.rounds}")
    parser.add_argument(
        "--services",
        metavar="N[,N]",
        type=_numbers,
        help="sizes of cluster to measure, at least 2 each; default "
        f"{','.join(map(str, usual.services))}",
    )
    parser.add_argument("--changes", type=_positive, help=f"default {usual.changes}")
    parser.add_argument("--starts", type=_positive, help=f"default {usual.starts}")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser


def _scale(chosen: argparse.Namespace) -> Scale:
    given = {name: getattr(chosen, name) for name in ("rounds", "services", "changes", "starts")}
    return replace(Scale(), **{name: value for name, value in given.items() if value is not None})


def _suite(text: str) -> str:
    if text not in SUITES:
        raise argparse.ArgumentTypeError(f"no suite {text!r}; there are {', '.join(SUITES)}")
    return text


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdigit() and int(part) >= 2 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 2, as 2,10000")
    return tuple(int(part) for part in parts)


def _say(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\33[K{line}")
        sys.stderr.flush()


if __name__ == "__main__":
    try:
        sandbox.enter()
        main(sys.argv[1:])
    except BpfsvcError as failure:
        sys.stderr.write(f"bench: {failure}\n")
        sys.exit(failure.exit_code)
