"""One line for each Service that a plan changes, from ``-v 2`` on: what came and what went."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from bpfsvc.base.texts import change_text
from bpfsvc.services.plans.changes import ServiceChange

LOGGER = "bpfsvc.changes"
"""A logger with its own level: ten thousand Services are ten thousand lines at the start."""

_log = logging.getLogger(LOGGER)

_SHOWN = 8
"""Endpoints and frontends that a line names; the others are only counted."""


def is_logged() -> bool:
    """Return True if changes of Services are logged."""
    return _log.isEnabledFor(logging.INFO)


def log_changes(changes: Iterable[ServiceChange]) -> None:
    """Log a line for each change."""
    for change in changes:
        text = change_text(change.what, change.endpoints, change.frontends, _SHOWN)
        service = "/".join(change.service)
        _log.info("Service %s: %s", service, text, extra={"service": service})
