"""Import some modules of a package without running the package's ``__init__``.

Some packages import all of themselves in ``__init__``. For a process that runs as long as the node
and needs a few of their modules, that is memory without use. What is imported this way, and what it
saves (resident memory of a process that imports nothing else, in MB):

==========  ========  ==========  ===============================================================
library     ``lean``  ``import``  who imports which part
==========  ========  ==========  ===============================================================
pyroute2    6.8       14.0        datapath.netlink: sockets and messages; no database, no unittest
==========  ========  ==========  ===============================================================
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "pyroute2": ("pyroute2",),
    "kubernetes": ("kubernetes", "kubernetes.client", "kubernetes.config", "kubernetes.utils"),
}
"""The packages of a library whose ``__init__`` does not run."""


@contextmanager
def lean(library: str, members: Mapping[str, Mapping[str, object]] | None = None) -> Iterator[None]:
    """Import modules of a library of ``PACKAGES`` inside this block; see :func:`bare_package`.

    ``members``: by package, what its modules import from the package itself.
    """
    with ExitStack() as stack:
        for package in PACKAGES[library]:
            stack.enter_context(bare_package(package, **(members or {}).get(package, {})))
        yield


@contextmanager
def bare_package(name: str, **members: object) -> Iterator[None]:
    """Run ``from NAME.module import ...`` inside this block without running ``NAME/__init__``.

    The imported names stay valid; ``sys.modules`` is restored afterwards, so that a later ``import
    NAME`` elsewhere in the process gets the ordinary package. If NAME is imported already, there is
    nothing to save and the block imports as usual. ``members`` are what modules of the package
    import from ``NAME`` itself.

    Raises ``ModuleNotFoundError`` if there is no such package.
    """
    if name in sys.modules:
        yield
        return
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    vars(sys.modules[name]).update(members)
    try:
        yield
    finally:
        for module in list(sys.modules):
            if module == name or module.startswith(name + "."):
                del sys.modules[module]


@contextmanager
def without(module: str) -> Iterator[None]:
    """Make imports inside this block behave as if an optional module were not installed."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


@contextmanager
def deferred(name: str, **members: object) -> Iterator[None]:
    """Replace module NAME inside this block by one that imports the real module when it is used.

    For libraries that a module imports at its head and uses in a rare case only. ``members`` are
    attributes of it; any other attribute is taken from the real module when it is first used.
    """
    if name in sys.modules:
        yield
        return

    def attribute(each: str) -> Any:
        if each.startswith("__"):
            raise AttributeError(each)  # the import itself asks for these
        return getattr(importlib.import_module(name), each)

    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(members, __getattr__=attribute)
    try:
        yield
    finally:
        del sys.modules[name]


def imported_on_call(module: str, name: str) -> Callable[..., Any]:
    """Return a function that calls ``name`` of ``module``, which is imported then."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return call
