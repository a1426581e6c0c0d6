"""What ``bpfsvc status`` shows of an agent in shadow mode; the agent is asked by HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bpfsvc.base import http_client
from bpfsvc.base.texts import SERVER_NAME, SHADOW_PATH, count_text

_SECONDS = 2.0

Report = Mapping[str, Any]


def ask_shadow(address: tuple[str, int]) -> Report | None:
    """Return the report of the agent in shadow mode at an address; None if there is none."""
    try:
        with http_client.connect(address, _SECONDS) as client:
            answer = http_client.get(client, SHADOW_PATH)
        if answer.status != 200 or answer.server != SERVER_NAME:
            return None
        report: Report = json.loads(answer.body)
    except (OSError, ValueError):
        return None
    return report


def report_lines(report: Report) -> list[str]:
    """Return the lines for people: the sum, and a line for each Service and kind of difference."""
    number = report["differences"]
    result = f"DIFFERENT {count_text(number, 'time')}" if number else "no difference"
    since = f" since {report['since']}" if report["since"] else "; comparing begins soon"
    lines = [f"shadow mode, {result} in {count_text(report['connections'], 'connection')}{since}"]
    if report["losses"]:
        lines.append(f"connections were missed {count_text(report['losses'], 'time')}")
    for count in report["services"]:
        name = f"{count['namespace']}/{count['name']}" if count["name"] else "(unknown Service)"
        lines.append(f"{name}  {count['kind']}  {count['number']}  first: {count['first']}")
    return lines
