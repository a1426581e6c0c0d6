"""Import some modules of pyroute2 without running the package's ``__init__``.

pyroute2 imports all of itself in ``__init__``: a database, every protocol, unittest. For a process
that runs as long as the node and needs its sockets and messages, that is memory without use: 14.0
MB of resident memory in place of 6.8 (a process that imports nothing else).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def bare_package(name: str) -> Iterator[None]:
    """Run ``from NAME.module import ...`` inside this block without running ``NAME/__init__``.

    The imported names stay valid; ``sys.modules`` is restored afterwards, so that a later ``import
    NAME`` elsewhere in the process gets the ordinary package. If NAME is imported already, there is
    nothing to save and the block imports as usual.

    Raises ``ModuleNotFoundError`` if there is no such package.
    """
    if name in sys.modules:
        yield
        return
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        for module in list(sys.modules):
            if module == name or module.startswith(name + "."):
                del sys.modules[module]


@contextmanager
def replaced(name: str, **members: object) -> Iterator[None]:
    """Let imports of module NAME inside this block find ``members`` and nothing else.

    For a module that a library imports at its head and needs for its own tests only.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(members)
    try:
        yield
    finally:
        del sys.modules[name]
