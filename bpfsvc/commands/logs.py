"""Where messages go, and in what form: to stderr, as kube-proxy's do."""

from __future__ import annotations

import json
import logging
import sys

DEBUG_FROM = 4
"""The verbosity from which on kube-proxy tells what only helps to find faults."""


class Json(logging.Formatter):
    """One JSON object for each message, with the names that Kubernetes' own logs have."""

    def format(self, record: logging.LogRecord) -> str:
        """Give one line."""
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

    What libraries say is of interest only if it is a warning.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        Json() if form == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    level = logging.DEBUG if verbosity >= DEBUG_FROM else logging.INFO
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("bpfsvc").setLevel(level)
