"""Texts of manifests, and what is read from them."""

from __future__ import annotations

import json

from bpfsvc.kube.manifests.documents import Objects, Unusable, read

SERVICE = """\
apiVersion: v1
kind: Service
metadata:
  name: NAME
spec:
  clusterIP: 10.96.0.1
  ports:
  - port: 80
"""

YAML_LIST = """\
apiVersion: v1
items:
- apiVersion: v1
  kind: Service
  metadata: {name: a}
  spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
- apiVersion: v1
  kind: Service
  metadata:
    name: b
  spec:
    clusterIP: 10.96.0.2
    ports:
    - name: http
      port: 80
kind: List
metadata:
  resourceVersion: ""
"""

JSON_LIST = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name},
                "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": port}]},
            }
            for name, port in (("a", 80), ("b", 80), ("c", "eighty"))
        ],
    },
    indent="\t",
)


def service(name: str) -> str:
    return SERVICE.replace("NAME", name)


def parse(text: str | bytes, name: str = "x.yaml") -> Objects:
    content = read(name, text.encode() if isinstance(text, str) else text)
    assert not content.problems
    return content.objects


def names(objects: Objects) -> list[str]:
    return [item.name for item in objects]


def problems(text: str | bytes, name: str = "x.yaml") -> list[str]:
    try:
        found = read(name, text.encode() if isinstance(text, str) else text).problems
    except Unusable as error:
        found = error.problems
    return [str(problem) for problem in found]
