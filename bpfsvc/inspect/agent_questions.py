"""Questions to the agent of this node that may stay without an answer."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from bpfsvc.base import http_client
from bpfsvc.base.local_socket import connect
from bpfsvc.model.answers import AgentState, OtherVersion, decode

_T = TypeVar("_T")

_SECONDS = 2.0


def ask_agent(pin_root: Path, path: str, kind: type[_T]) -> _T | None:
    """Return what the agent of ``pin_root`` answers; None without an agent that can tell."""
    try:
        with connect(pin_root, _SECONDS) as client:
            answer = http_client.get(client, path)
        return decode(answer.body, kind) if answer.status == 200 else None
    except (OSError, OtherVersion):
        return None


def ask_state(pin_root: Path) -> AgentState | None:
    """Return how far the agent of ``pin_root`` is; None without an agent that can tell."""
    return ask_agent(pin_root, "/state?namespace=&name=", AgentState)
