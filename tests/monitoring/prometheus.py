"""A Prometheus that runs in a namespace of the lab, and scrapes what it reaches there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from bpfsvc.devtools.lab.http_request import http_request
from bpfsvc.devtools.lab.namespace import LabError, Namespace
from bpfsvc.devtools.lab.patience import wait
from tests.monitoring.files import PROGRAMS, rules, shortened

PORT = 9090

RATE_INTERVAL = "20s"
"""In place of Grafana's ``$__rate_interval``: it scrapes every second."""


class Prometheus:
    """Asks a running Prometheus."""

    def __init__(self, namespace: Namespace, port: int = PORT) -> None:
        self._namespace = namespace
        self._port = port

    def get(self, path: str, **words: str) -> Any:
        """Return the data of an answer; ``LabError`` with the reason if it is an error."""
        query = f"?{urlencode(words)}" if words else ""
        status, body = http_request(
            self._namespace, "127.0.0.1", self._port, f"/api/v1/{path}{query}"
        )
        answer = json.loads(body)
        if status != 200:
            raise LabError(f"{path} {words}: {answer.get('error')}")
        return answer["data"]

    def samples(self, expression: str) -> list[dict[str, str]]:
        """Return the labels of all series that have a number now."""
        result = self.get("query", query=expression)["result"]
        return [item["metric"] for item in result if not math.isnan(float(item["value"][1]))]

    def names(self) -> set[str]:
        """Return the names of all metrics."""
        return set(self.get("label/__name__/values"))


@contextmanager
def running_prometheus(
    namespace: Namespace,
    targets: Sequence[str],
    directory: Path,
    *,
    port: int = PORT,
    factor: int = 1,
) -> Iterator[Prometheus]:
    """Run it until the end of the block; all targets have the job that the PodMonitor gives.

    Every duration of the rules is divided by ``factor``.
    """
    settings = _write_settings(targets, directory, factor)
    log = directory / "log"
    with log.open("wb") as output:
        process = namespace.popen(
            [
                str(PROGRAMS / "prometheus"),
                f"--config.file={settings}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=output,
            stderr=output,
        )

    def ready() -> bool:
        if process.poll() is not None:
            raise LabError(f"Prometheus ended:\n{log.read_text()}")
        try:
            return http_request(namespace, "127.0.0.1", port, "/-/ready")[0] == 200
        except OSError:
            return False

    try:
        wait(ready, "Prometheus is ready", 30)
        yield Prometheus(namespace, port)
    finally:
        namespace.end(process)


def _write_settings(targets: Sequence[str], directory: Path, factor: int) -> Path:
    """Write the rules and the settings, and return the file of these."""
    rule_file, settings = directory / "rules.yaml", directory / "prometheus.yaml"
    rule_file.write_text(yaml.safe_dump(shortened(rules(), factor)))
    jobs = {
        "job_name": "kube-proxy",
        "honor_labels": True,
        # The PodMonitor gives targets the namespace of their pods.
        "static_configs": [{"targets": list(targets), "labels": {"namespace": "kube-system"}}],
    }
    settings.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(rule_file)],
                "scrape_configs": [jobs],
            }
        )
    )
    return settings
