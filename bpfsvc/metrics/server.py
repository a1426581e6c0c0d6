"""The metrics server: kube-proxy's paths, for collectors and for people who look into an agent."""

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
from bpfsvc.metrics.text import CONTENT_TYPE, head
from bpfsvc.pages import JSON, Page, Pages, Request, Route

if TYPE_CHECKING:
    from bpfsvc.metrics.recorder import Metrics

_WARNING = (
    "Warning: This page is for people who look into an agent, not for programs:"
    " its form may change at any time.\n"
)

_WORKERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the server tells beside metrics.

    * ``mode``: whose behaviour the configuration asks for, as kube-proxy names it.
    * ``configuration``: the configuration in force, by the group of its API.
    * ``flags``: by name, as given or by default.
    * ``checks``: for ``/metrics/slis``, whether each kind of health (``healthz``, ``livez``) is
      good.
    * ``profiling``: ``/debug/pprof/`` is there.
    """

    mode: str
    configuration: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)
    checks: Mapping[str, Callable[[], bool]] = field(default_factory=dict)
    profiling: bool = False
    started: float = field(default_factory=time.time)


class MetricsServer:
    """Serves :class:`~bpfsvc.metrics.recorder.Metrics`."""

    def __init__(
        self,
        address: tuple[str, int],
        metrics: Metrics,
        about: About,
        log: Callable[[str], None],
        *,
        hard_fail: bool = False,
    ) -> None:
        """See :class:`bpfsvc.pages.Pages`."""
        self._pages = Pages(
            "metrics", address, routes(metrics, about), log, workers=_WORKERS, hard_fail=hard_fail
        )

    @property
    def port(self) -> int:
        """The port that is listened on; 0 while there is none."""
        return self._pages.port

    def start(self) -> None:
        """Answer from now on; ``UsageError`` if ``hard_fail`` and the address cannot be had."""
        self._pages.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._pages.stop()


def routes(metrics: Metrics, about: About) -> dict[str, Route]:
    """Give all pages by their paths."""
    found: dict[str, Route] = {
        "/metrics": partial(_metrics, metrics),
        "/metrics/slis": _Indicators(about.checks),
        "/proxyMode": lambda _: _text(about.mode),
        "/healthz": lambda _: _text("ok"),
        "/configz": partial(_configuration, about),
        "/flagz": partial(_flags, about),
    }
    if about.profiling:
        found |= {
            "/debug/pprof": _profiles,
            "/debug/pprof/": _profiles,
            "/debug/pprof/goroutine": _threads,
            "/debug/pprof/heap": _memory,
        }
    paths = sorted([*found, "/statusz"])
    found["/statusz"] = partial(_status, about, paths)
    return found


def _text(text: str) -> Page:
    return Page(HTTPStatus.OK, text.encode())


def _metrics(metrics: Metrics, request: Request) -> Page:
    accepted = {
        coding.partition(";")[0].strip()
        for coding in request.headers.get("accept-encoding", "").split(",")
        if "q=0" not in coding.replace(" ", "").split(";")[1:]
    }
    gzip = "gzip" in accepted
    headers = {"Content-Encoding": "gzip"} if gzip else {}
    return Page(HTTPStatus.OK, metrics.scrape(gzip=gzip), CONTENT_TYPE, headers)


class _Indicators:
    """``/metrics/slis``: whether health is good, and how often it was and was not when asked."""

    def __init__(self, checks: Mapping[str, Callable[[], bool]]) -> None:
        self._checks: dict[tuple[str, str], Callable[[], bool]] = {
            ("ping", "healthz"): lambda: True,
            **{("proxy", kind): check for kind, check in checks.items()},
        }
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str, str], int] = {}

    def __call__(self, _: Request) -> Page:
        now, counts = [], []
        for (name, kind), check in self._checks.items():
            well = check()
            now.append(f'kubernetes_healthcheck{{name="{name}",type="{kind}"}} {int(well)}\n')
            key = (name, kind, "success" if well else "error")
            with self._lock:
                self._counts[key] = self._counts.get(key, 0) + 1
        with self._lock:
            for (name, kind, status), count in self._counts.items():
                labels = f'name="{name}",status="{status}",type="{kind}"'
                counts.append(f"kubernetes_healthchecks_total{{{labels}}} {count}\n")
        text = (
            head("kubernetes_healthcheck", "gauge", "Whether a check of health is good")
            + "".join(now)
            + head("kubernetes_healthchecks_total", "counter", "Results of checks of health")
            + "".join(counts)
        )
        return Page(HTTPStatus.OK, text.encode(), CONTENT_TYPE)


def _configuration(about: About, _: Request) -> Page:
    return Page(HTTPStatus.OK, json.dumps(about.configuration).encode(), JSON)


def _status(about: About, paths: list[str], _: Request) -> Page:
    up = int(time.time() - about.started)
    hours, minutes, seconds = up // 3600, up // 60 % 60, up % 60
    started = time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(about.started))
    return _text(
        f"bpfsvc statusz\n{_WARNING}\n"
        f"Started: {started}\n"
        f"Up: {hours} hr {minutes:02d} min {seconds:02d} sec\n"
        f"Python version: {platform.python_version()}\n"
        f"Binary version: {__version__}\n\n"
        f"Paths: {' '.join(paths)}\n"
    )


def _flags(about: About, _: Request) -> Page:
    lines = (f"{name}={_shown(value)}\n" for name, value in sorted(about.flags.items()))
    return _text(f"bpfsvc flagz\n{_WARNING}\n" + "".join(lines))


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- profiling --


def _profiles(_: Request) -> Page:
    return _text(
        "goroutine  what every thread is doing\nheap       memory of the process, and its objects\n"
    )


def _threads(_: Request) -> Page:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame))
        parts.append(f"thread {ident} ({names.get(ident, 'unknown')}):\n{stack}\n")
    return _text("".join(parts))


def _memory(_: Request) -> Page:
    sizes = Path("/proc/self/smaps_rollup").read_text()
    return _text(f"{sizes}\nblocks of Python: {sys.getallocatedblocks()}\n")
