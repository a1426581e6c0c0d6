"""The release of the API server, asked before anything else is known of it."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from pathlib import Path

from bpfsvc import __version__
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.config.release import Release, read_release

_PATIENCE = 3.0
"""Seconds to wait: an agent must start without the server, too."""


def ask_release(kubeconfig: str, master: str) -> Release | None:
    """Return the release of the API server; None without an answer within seconds."""
    answer: queue.SimpleQueue[Release | None] = queue.SimpleQueue()

    def ask() -> None:
        release = None
        # What is wrong with a login is reported when the server is followed.
        with suppress(BpfsvcError):
            release = _ask(Path(kubeconfig) if kubeconfig else None, master)
        answer.put(release)

    # A thread, as a plugin for a login may take as long as it likes.
    threading.Thread(target=ask, name="api release", daemon=True).start()
    with suppress(queue.Empty):
        return answer.get(timeout=_PATIENCE)
    return None


def _ask(kubeconfig: Path | None, master: str) -> Release | None:
    # Imported here: an agent of a directory of manifests needs no client.
    from bpfsvc.kube import requests
    from bpfsvc.kube.client.connection import connect

    connection = connect(kubeconfig, master, user_agent=f"bpfsvc/{__version__}")
    return read_release(requests.version(connection))
