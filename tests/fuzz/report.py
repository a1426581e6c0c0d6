"""What a run says: a failure as a test that is ready to be kept, and the figures of a run."""

from __future__ import annotations

from pathlib import Path

from tests.docs.figures import measured, write_section
from tests.fuzz.events import Event, Packet
from tests.fuzz.run import Failure, Result

_LEFT_OUT = """\
Left out: sockets, XDP, the fast path, weights, clients on the node, fragments with other extension
headers or of SCTP, full tables, several CPUs at the same moment. The middle of a connection to a
port of a cluster IP that is no frontend may pass. What the kernel does between the hooks (routing,
netfilter) is not part of it."""


def as_test(failure: Failure) -> str:
    """Return a test function for ``tests/fuzz/test_histories.py`` that plays a failure."""
    lines = [f"    # {line}" for line in _wrapped(failure.text)]
    events = "".join(f"            {_as_code(event)},\n" for event in failure.events)
    return (
        f"def test_history_{failure.seed}(player: Player) -> None:\n"
        + "\n".join(lines)
        + f"\n    player.begin({failure.seed})\n    player.play(\n        [\n{events}        ]\n"
        "    )\n    player.end()\n"
    )


def _as_code(event: Event) -> str:
    if not isinstance(event, Packet):
        return repr(event)
    fields = (f"{name}={int(value)}" for name, value in event._asdict().items())
    return f"Packet({', '.join(fields)})"


def _wrapped(text: str, width: int = 94) -> list[str]:
    return [text[at : at + width] for at in range(0, len(text), width)]


def figures(result: Result, seed: int, processes: int) -> str:
    """Return the figures of a run, as lines of Markdown."""
    rate = result.runs / result.seconds if result.seconds else 0
    rows = [
        ("histories", f"{result.histories:,}"),
        ("events", f"{result.events:,}"),
        ("program runs", f"{result.runs:,}"),
        ("program runs a second", f"{rate:,.0f} in {processes} processes"),
        *((name, f"{count:,}") for name, count in sorted(result.seen.items())),
        ("differences from the model", f"{len(result.failures)}"),
    ]
    return measured(f"make fuzz MINUTES={result.seconds / 60:.1f} SEED={seed}", rows)


def write_figures(path: Path, text: str) -> None:
    """Put the figures of a run into a document, and what it leaves out."""
    write_section(path, "make fuzz", f"{text}\n{_LEFT_OUT}")
