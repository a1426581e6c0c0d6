"""Import a module out of a package without running the package's ``__init__``.

Some packages import all of themselves in ``__init__``. For a process that lives as long as the
node, and needs one module of them, that is memory held for nothing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def bare_package(name: str) -> Iterator[None]:
    """Let ``from NAME.module import ...`` inside this block leave ``NAME/__init__`` unrun.

    What was imported stays with the names it was bound to; ``sys.modules`` is left as it was found,
    so that a later ``import NAME`` elsewhere in the process gets the ordinary package. If NAME is
    imported already there is nothing to save, and the block is ordinary too.

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
