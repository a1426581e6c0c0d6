"""The metrics server: kube-proxy's paths, for Prometheus and for people who debug an agent."""

from __future__ import annotations

import json
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from bpfsvc import __version__
from bpfsvc.http.server import JSON, HttpServer, Request, Response, Route
from bpfsvc.metrics.exposition import CONTENT_TYPE
from bpfsvc.metrics.health_checks import HealthCheckFamilies

if TYPE_CHECKING:
    from bpfsvc.metrics.recorder import Metrics

_WARNING = (
    "Warning: This page is for people, not for programs; its format may change at any time.\n"
)

_WORKERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    """The values that the server shows beside metrics.

    * ``mode``: kube-proxy's name of the mode that the configuration asks for.
    * ``configuration``: the configuration in force, by API group.
    * ``flags``: by name, as given or by default.
    * ``checks``: for ``/metrics/slis``, by kind of health (``healthz``, ``livez``); True if it is
      good.
    * ``profiling``: serve ``/debug/pprof/``.
    * ``started``: Unix time in seconds.
    """

    mode: str
    configuration: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)
    checks: Mapping[str, Callable[[], bool]] = field(default_factory=dict)
    profiling: bool = False
    started: float = field(default_factory=time.time)


class MetricsServer(HttpServer):
    """Serves :class:`~bpfsvc.metrics.recorder.Metrics`."""

    def __init__(
        self,
        address: tuple[str, int],
        metrics: Metrics,
        info: AgentInfo,
        log: Callable[[str], None],
        *,
        hard_fail: bool = False,
    ) -> None:
        """``log`` and ``hard_fail`` as for :class:`bpfsvc.http.server.HttpServer`."""
        super().__init__(
            "metrics", address, routes(metrics, info), log, workers=_WORKERS, hard_fail=hard_fail
        )


def routes(metrics: Metrics, info: AgentInfo) -> dict[str, Route]:
    """Return all pages by path."""
    pages: dict[str, Route] = {
        "/metrics": partial(_metrics, metrics),
        "/metrics/slis": partial(_health_checks, HealthCheckFamilies(info.checks)),
        "/proxyMode": lambda _: _text(info.mode),
        "/healthz": lambda _: _text("ok"),
        "/configz": partial(_configuration, info),
        "/flagz": partial(_flags, info),
    }
    if info.profiling:
        pages |= {
            "/debug/pprof": _profiles,
            "/debug/pprof/": _profiles,
            "/debug/pprof/goroutine": _threads,
            "/debug/pprof/heap": _memory,
        }
    paths = sorted([*pages, "/statusz"])
    pages["/statusz"] = partial(_status, info, paths)
    return pages


def _text(text: str) -> Response:
    return Response(HTTPStatus.OK, text.encode())


def _metrics(metrics: Metrics, request: Request) -> Response:
    accepted = {
        coding.partition(";")[0].strip()
        for coding in request.headers.get("accept-encoding", "").split(",")
        if "q=0" not in coding.replace(" ", "").split(";")[1:]
    }
    gzip = "gzip" in accepted
    headers = {"Content-Encoding": "gzip"} if gzip else {}
    return Response(HTTPStatus.OK, metrics.scrape(gzip=gzip), CONTENT_TYPE, headers)


def _health_checks(checks: HealthCheckFamilies, _: Request) -> Response:
    return Response(HTTPStatus.OK, checks.render(), CONTENT_TYPE)


def _configuration(info: AgentInfo, _: Request) -> Response:
    return Response(HTTPStatus.OK, json.dumps(info.configuration).encode(), JSON)


def _status(info: AgentInfo, paths: list[str], _: Request) -> Response:
    up = int(time.time() - info.started)
    hours, minutes, seconds = up // 3600, up // 60 % 60, up % 60
    started = time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(info.started))
    return _text(
        f"bpfsvc statusz\n{_WARNING}\n"
        f"Started: {started}\n"
        f"Up: {hours} hr {minutes:02d} min {seconds:02d} sec\n"
        f"Python version: {platform.python_version()}\n"
        f"Binary version: {__version__}\n\n"
        f"Paths: {' '.join(paths)}\n"
    )


def _flags(info: AgentInfo, _: Request) -> Response:
    lines = (f"{name}={_shown(value)}\n" for name, value in sorted(info.flags.items()))
    return _text(f"bpfsvc flagz\n{_WARNING}\n" + "".join(lines))


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- profiling --


def _profiles(_: Request) -> Response:
    return _text(
        "goroutine  the stack of every thread\nheap       memory of the process, and its objects\n"
    )


def _threads(_: Request) -> Response:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame))
        parts.append(f"thread {ident} ({names.get(ident, 'unknown')}):\n{stack}\n")
    return _text("".join(parts))


def _memory(_: Request) -> Response:
    sizes = Path("/proc/self/smaps_rollup").read_text()
    return _text(f"{sizes}\nblocks of Python: {sys.getallocatedblocks()}\n")
