"""Run at the start of each Python process that finds this folder in PYTHONPATH.

An agent that a test starts loads its programs with marks: the module that loads them is changed as
soon as it is imported. coverage.py watches the process, if it is asked to.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_LOADING = "bpfsvc.datapath.loader.creation"


class _Watch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, where others would, and does more when it is there."""

    def __init__(self) -> None:
        self._real: importlib.abc.Loader | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _LOADING or self._real:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            self._real, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec) if self._real else None

    def exec_module(self, module: ModuleType) -> None:
        if self._real:
            self._real.exec_module(module)
        sys.path.append(str(Path(__file__).parents[3]))
        from tests.branches.recorder import record_in_agent

        record_in_agent()


if os.environ.get("COVERAGE_PROCESS_START"):
    import coverage

    coverage.process_startup()
if os.environ.get("BPFSVC_BRANCHES_MAP"):
    sys.meta_path.insert(0, _Watch())
