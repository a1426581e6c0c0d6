"""The log: where messages go (to stderr, as kube-proxy's do) and their format."""

from __future__ import annotations

import json
import logging
import sys

from bpfsvc.agent.sync import change_log

CHANGES_FROM = 2
"""From this verbosity on, each changed Service has a line."""

DEBUG_FROM = 4
"""From this verbosity on, messages that only help to find faults are logged."""


class Json(logging.Formatter):
    """One JSON object for each message, with the names that Kubernetes' own logs have."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        fields: dict[str, object] = {
            "ts": round(record.created * 1000, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            fields["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def set_up(form: str, verbosity: int) -> None:
    """Send everything to stderr; ``form`` is ``text`` or ``json``.

    Of libraries, only warnings and errors are logged.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        Json() if form == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    level = logging.DEBUG if verbosity >= DEBUG_FROM else logging.INFO
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("bpfsvc").setLevel(level)
    changes = logging.INFO if verbosity >= CHANGES_FROM else logging.WARNING
    logging.getLogger(change_log.LOGGER).setLevel(changes)
