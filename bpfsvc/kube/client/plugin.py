"""The short process that runs the login plugin of a kubeconfig.

Only this process imports the ``kubernetes`` package, which knows plugins of all kinds: ``exec``,
OIDC with its refresh tokens, Google. The process writes one JSON object to standard output, with
the fields of ``kubeconfig.PluginResult``. The object is empty if there are no credentials; the last
line of standard error is then the reason.

Usage: ``python -m bpfsvc.kube.client.plugin KUBECONFIG``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kubernetes.client import Configuration
from kubernetes.config import kube_config

_kube_config: Any = kube_config  # its functions have no types


def run(path: str) -> dict[str, object]:
    """Return what the plugin returns, by field; raise an error of any kind without credentials."""
    configuration: Any = Configuration()
    loader: Any = _kube_config.KubeConfigLoader(
        _kube_config.KubeConfigMerger(path).config, config_base_path=None
    )
    loader.load_and_set(configuration)
    result: dict[str, object] = {}
    for setting in configuration.auth_settings().values():
        result["authorization"] = str(setting["value"]).strip()
    if configuration.cert_file and configuration.key_file:
        result["certificate"] = Path(configuration.cert_file).read_text()
        result["key"] = Path(configuration.key_file).read_text()
    if expiry := getattr(loader, "expiry", None):
        result["expires"] = expiry.timestamp()
    return result


if __name__ == "__main__":
    try:
        print(json.dumps(run(sys.argv[1])))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        print("{}")
