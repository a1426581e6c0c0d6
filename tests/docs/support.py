"""``python -m tests.docs.support`` makes SUPPORT.md of what other pages, and the doctor, say.

Nothing is typed into the tables: kernels are those of docs/kernels.md, rules of netfilter those of
docs/which-path.md, clouds those of docs/managed-clusters.md, the cluster that of docs/cluster.md.
Which other programs are refused is asked of the doctor's own check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bpfsvc.doctor.check.others import check_others
from bpfsvc.doctor.facts import CILIUM_PINS, OthersFacts
from bpfsvc.doctor.finding import Level
from tests.cluster.settings import CNIS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "SUPPORT.md"
COMMAND = "python -m tests.docs.support"

_HEAD = f"""\
# What is supported

`{COMMAND}` makes this page of other pages. **Tried**: bpfsvc ran there, and tests
passed. **Expected**: nothing is known that speaks against it, and parts were tried, as the line
says. **Not**: it refuses to start, or cannot work. `bpfsvc doctor` says it for your node. Which
versions are supported, and how long: [SECURITY.md](SECURITY.md#supported-versions) and
[docs/upgrading.md](docs/upgrading.md).
"""

_OTHERS = {
    "Cilium in place of kube-proxy": OthersFacts(
        devices=frozenset({"cilium_host"}), pinned=frozenset(CILIUM_PINS)
    ),
    "Cilium beside kube-proxy": OthersFacts(
        devices=frozenset({"cilium_host"}), loaded=frozenset(), pinned=frozenset()
    ),
    "Calico in eBPF mode": OthersFacts(devices=frozenset({"bpfin.cali"})),
    "Antrea with proxyAll": OthersFacts(devices=frozenset({"antrea-gw0"}), gateway="antrea-gw0"),
    "Antrea": OthersFacts(devices=frozenset({"antrea-gw0"})),
    "OVN-Kubernetes": OthersFacts(devices=frozenset({"ovn-k8s-mp0"})),
    "kube-router's service proxy": OthersFacts(devices=frozenset({"kube-dummy-if"})),
}
"""Signs of other programs, as the doctor sees them."""

_LEVELS = {Level.REFUSE: "not", Level.WARNING: "expected, untried", Level.OK: "expected"}
_CLOUDS = {"fits": "expected", "beside": "expected, beside kube-proxy", "no": "not"}


def page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_kernels(), *_kubernetes(), *_others(), *_rules(), *_clouds()])


def _kernels() -> Iterator[str]:
    yield "## Kernels\n\n| Linux | | suites that passed there |\n|---|---|---|"
    yield "| before 5.10 | not | |"
    for kernel, release, *_, suites in table("kernels.md", "kernel"):
        name = kernel if kernel[0].isdigit() else f"{kernel} ({release})"
        yield f"| {name} | {'tried' if suites != 'none' else 'not'} | {suites} |"
    yield "| others from 5.10 on | expected | features are [tried one by one](docs/kernels.md) |\n"
    yield "amd64 and arm64; other processors: not.\n"


def _kubernetes() -> Iterator[str]:
    text = (ROOT / "docs/cluster.md").read_text()
    (tried,) = set(re.findall(r"^Kubernetes (1\.\d+), ", text, re.MULTILINE))
    needed = re.search(r"^\* Kubernetes (1\.\d+) or later", _operations(), re.MULTILINE)
    manifests = re.search(r"\(The manifests\s+themselves need (1\.\d+)", _operations())
    assert needed
    assert manifests
    yield "## Kubernetes\n\n| version | | |\n|---|---|---|"
    yield f"| {tried} | tried | [a cluster](docs/cluster.md), CNI plugins {' and '.join(CNIS)} |"
    yield f"| {manifests[1]} and later | expected | the same API |"
    yield f"| {needed[1]} to {manifests[1]} | expected | without the field `appArmorProfile` |"
    yield f"| before {needed[1]} | expected | `deploy/components/classic-endpoints` |\n"


def _operations() -> str:
    return (ROOT / "docs/operations.md").read_text()


def _others() -> Iterator[str]:
    yield "## Beside other programs that do Services\n"
    yield "| program | | the doctor says |\n|---|---|---|"
    for name, facts in _OTHERS.items():
        for finding in check_others(facts):
            yield f"| {name} | {_LEVELS[finding.level]} | {finding.text}: {finding.hint} |"
    yield ""


def _rules() -> Iterator[str]:
    yield "## CNIs, policies and firewalls\n"
    yield "Rules as these programs write them were tried, on nodes of the lab; the programs were"
    yield "not. What they get of the fast path is [on a page of its own](docs/which-path.md).\n"
    yield "| rules of | | fast path |\n|---|---|---|"
    for name, level, _ in table("which-path.md", "beside"):
        if name:
            yield f"| {name} | {'see above' if _refused(name) else 'expected'} | {level} |"
    yield ""


def _refused(name: str) -> bool:
    programs = {re.split(" in place | beside | with ", other)[0] for other in _OTHERS}
    return name.split(",")[0] in programs


def _clouds() -> Iterator[str]:
    yield "## Managed clusters\n\nNone was tried ([why these words](docs/managed-clusters.md)).\n"
    yield "| cluster | | CNI |\n|---|---|---|"
    for name, _, cni, fits in table("managed-clusters.md", ""):
        yield f"| {name} | {_CLOUDS[re.split('[,:]', fits)[0]]} | {cni} |"


def table(document: str, first: str) -> list[list[str]]:
    """Return the rows of the first table of a document whose first column has that title."""
    lines = (ROOT / "docs" / document).read_text().splitlines()
    title = f"| {first} |" if first else "| |"
    heads = [number for number, line in enumerate(lines) if line.startswith(title)]
    rows = []
    for line in lines[heads[0] + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


if __name__ == "__main__":
    PAGE.write_text(page().rstrip() + "\n")
