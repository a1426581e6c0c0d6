"""The lab's API server as a separate process, which takes orders over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

SLICES = "/apis/discovery.k8s.io/v1/endpointslices"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    words = [sys.executable, "-m", "bpfsvc.devtools.lab.apiserver", "127.0.0.1:0"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdin
        yield json.loads(child.stdout.readline())["url"]
        child.stdin.close()
        assert child.wait(10) == 0


def ask(url: str, values: Any = None) -> Any:
    body = None if values is None else json.dumps(values).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as answer:
        return json.loads(answer.read())


def test_a_crowd_has_services_with_slices_of_their_own(url: str) -> None:
    ask(f"{url}/control/fill", {"services": 20, "endpoints": 3})
    names = [item["metadata"]["name"] for item in ask(f"{url}/api/v1/services")["items"]]
    assert names == [f"web-{number:05}" for number in range(20)]
    (item,) = ask(f"{url}{SLICES}?labelSelector=app%3Dweb-00007")["items"]
    addresses = [endpoint["addresses"] for endpoint in item["endpoints"]]
    assert addresses == [["10.128.0.21"], ["10.128.0.22"], ["10.128.0.23"]]


def test_objects_are_put_and_wrong_orders_are_refused(url: str) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9"}}
    assert ask(f"{url}/control/put", {"objects": [node]})["monotonic"] > 0
    assert ask(f"{url}/api/v1/nodes/n9")["kind"] == "Node"
    assert ask(f"{url}/control/nonsense", {})["error"]
    assert ask(f"{url}/control/fill", {"more": 2})["error"]
