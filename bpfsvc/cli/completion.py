"""What a shell offers after TAB: the Services, namespaces and maps that this node has now.

The names are read from the pinned maps. Where these cannot be read, without root or before the
first agent, nothing is offered, and nothing is said: the line of the shell belongs to its user.
The readers are imported when a shell asks: the agent has these options too, and does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from bpfsvc.base.errors import BpfsvcError

_T = TypeVar("_T")

Complete = Callable[[click.Context, click.Parameter, str], list[Any]]


def _read(context: click.Context, read: Callable[[Any], Iterable[_T]]) -> list[_T]:
    """Return what ``read`` makes of the maps that the command would read; nothing without them."""
    from bpfsvc.datapath.maps.pins import PinRoot
    from bpfsvc.inspect.agent_configuration import usual_pin_root
    from bpfsvc.inspect.reader import PinnedReader, open_pinned

    with suppress(BpfsvcError, OSError, ValueError):
        root = Path(context.params.get("pin_root") or usual_pin_root())
        with open_pinned(PinRoot(root)) as pinned:
            return [*read(PinnedReader(pinned))]
    return []


def _service_names(context: click.Context) -> list[tuple[str, str]]:
    from bpfsvc.inspect.service_names import service_keys

    wanted = context.params.get("namespace")
    only = ({wanted} if isinstance(wanted, str) else {*(wanted or ())}) - {""}
    keys = [key for key in _read(context, service_keys) if key[0]]
    return [key for key in keys if not only or key[0] in only]


def services(context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
    """Offer ``NAMESPACE/NAME``."""
    names = (f"{namespace}/{name}" for namespace, name in _service_names(context))
    return [name for name in names if name.startswith(begun)]


def services_or_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    """Offer ``NAMESPACE/NAME``, and ``NAME`` for a begin that is no namespace's."""
    return services(context, parameter, begun) or sorted(
        {name for _, name in _service_names(context) if name.startswith(begun)}
    )


def namespaces(context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
    """Offer the namespaces of Services."""
    spaces = sorted({namespace for namespace, _ in _service_names(context)})
    return [namespace for namespace in spaces if namespace.startswith(begun)]


def maps(context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
    """Offer the maps of the build that is loaded."""
    from bpfsvc.inspect.maps.dump import available

    names = sorted(_read(context, lambda reader: available(reader.layout)))
    return [name for name in names if name.startswith(begun)]


def files(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
    """Have the shell offer files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


def words(*known: str) -> Complete:
    """Return what offers words of a fixed set."""

    def complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[Any]:
        return [word for word in known if word.startswith(begun)]

    return complete
