"""What a release has beside the product: the Helm chart, and the kubectl plugin for krew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from bpfsvc.base.errors import BpfsvcError
from tests.release.archives import below, write_tar
from tests.release.checkout import Release
from tests.release.signature import sha256

CHART = Path("deploy/chart")
PLUGIN = Path("deploy/plugin")
PROGRAM = "kubectl-bpfsvc"
KREW = "bpfsvc.yaml"
"""The manifest of krew's index."""


def pack_chart(sources: Path, release: Release, target: Path) -> None:
    """Write the chart as ``helm package`` does, under the version of the release."""
    settings = sources / CHART / "Chart.yaml"
    chart = yaml.safe_load(settings.read_text())
    source_version, _, _ = release.version.partition("+")
    wrong = {key for key in ("version", "appVersion") if str(chart[key]) != source_version}
    if wrong:
        raise BpfsvcError(
            f"{CHART}/Chart.yaml has another {' and '.join(sorted(wrong))} than {source_version}",
            f"python -m tests.release.version {source_version} writes the version everywhere",
        )
    text = re.sub(r"^version: .*$", f"version: {release.version}", settings.read_text(), flags=re.M)
    settings.write_text(
        re.sub(r"^appVersion: .*$", f"appVersion: {release.image_tag}", text, flags=re.M)
    )
    name = chart["name"]
    rules = sources / CHART / ".helmignore"
    lines = rules.read_text().splitlines() if rules.exists() else []
    ignored = [line for line in lines if line and not line.startswith("#")]
    files = [
        (packed, path)
        for packed, path in below(sources / CHART, f"{name}/")
        if not any(path.match(pattern) for pattern in ignored)
    ]
    write_tar(target / f"{name}-{release.version}.tgz", files, release.seconds)


def pack_plugin(sources: Path, release: Release, address: str, target: Path) -> None:
    """Write the plugin as an archive, and krew's manifest with its address and hash."""
    archive = target / f"{PROGRAM}-{release.version}.tar.gz"
    files = [(PROGRAM, sources / PLUGIN / PROGRAM), ("LICENSE", sources / "LICENSE")]
    write_tar(archive, files, release.seconds)
    where = f"{address}/{archive.name}" if address else archive.name
    manifest = krew_manifest(release, where, sha256(archive))
    (target / KREW).write_text(yaml.safe_dump(manifest, sort_keys=False))


def krew_manifest(release: Release, address: str, digest: str) -> dict[str, Any]:
    """Return what krew's index wants to know of a plugin."""
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": PROGRAM.removeprefix("kubectl-")},
        "spec": {
            "version": f"v{release.version}",
            "shortDescription": "Look into the node agent bpfsvc",
            "description": "Runs the commands of bpfsvc, which implements Services by eBPF, on the"
            " nodes of a cluster.\n",
            "platforms": [
                {
                    "selector": {
                        "matchExpressions": [
                            {"key": "os", "operator": "In", "values": ["linux", "darwin"]}
                        ]
                    },
                    "uri": address,
                    "sha256": digest,
                    "bin": PROGRAM,
                    "files": [{"from": name, "to": "."} for name in (PROGRAM, "LICENSE")],
                }
            ],
        },
    }
