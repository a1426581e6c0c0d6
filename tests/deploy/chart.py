"""The chart, rendered by helm."""

from __future__ import annotations

import runpy
from collections.abc import Sequence

import yaml

from tests.deploy.kustomize import Object
from tests.deploy.programs import run
from tests.deploy.rendered import DEPLOY

CHART = DEPLOY / "chart"
VALUES = sorted(file.stem for file in (CHART / "values").iterdir())
SCHEMA = runpy.run_path(str(CHART / "schema.py"))
PLAIN = (
    "config.server=https://control-plane.example:6443",
    "config.kubeProxy.clusterCIDR=10.244.0.0/16",
)
"""What an operator would fill in: the examples of the overlay."""

IN_PLACE = "config.rolling=false"
KUBEADM = "config.configMap=kube-proxy"


def words(files: Sequence[str], settings: Sequence[str]) -> list[str]:
    """Return the options for files of values, by name, and for single values."""
    return [
        *(f"--values={CHART / 'values' / name}.yaml" for name in files),
        *(f"--set={setting}" for setting in settings),
    ]


def rendered(*settings: str, files: Sequence[str] = ()) -> list[Object]:
    """Return the objects of the chart."""
    done = run(
        "helm", "template", "--namespace=kube-system", "bpfsvc", CHART, *words(files, settings)
    )
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def refusal(*settings: str, files: Sequence[str] = ()) -> str:
    """Return the last lines that helm prints, without its remarks about links."""
    done = run("helm", "template", "bpfsvc", CHART, *words(files, settings))
    assert done.returncode != 0
    return "\n".join(line for line in done.stderr.splitlines() if "level=INFO" not in line)
