"""A suite that a kernel cannot run is no test."""

from __future__ import annotations

import pytest

from tests.kernels.suites import runnable


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect suites by kernel; parameters of two fixtures that depend on each other cannot."""
    left_out = [item for item in items if not _is_runnable(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_runnable(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    if callspec is None or not {"machine", "suite"} <= callspec.params.keys():
        return True
    suite = callspec.params["suite"]
    return suite in runnable([suite], callspec.params["machine"])
