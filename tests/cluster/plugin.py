"""The suite "plugin": kubectl bpfsvc as a stranger runs it, on a cluster with its agents."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from bpfsvc.devtools.lab.patience import wait
from tests.cluster import images
from tests.cluster.cluster import Cluster
from tests.cluster.load.changed_image import compile_changed, make_changed_image
from tests.cluster.product import ARCHIVE
from tests.cluster.report import Report
from tests.cluster.settings import CHECKOUT

NAME: Final = "plugin"
NAMESPACE: Final = "plugin"
_SERVED, _CLIENT = "n1", "n2"
_CHANGED_IMAGE: Final = "docker.io/bpfsvc-test/changed-layout:1"
_SECONDS: Final = 180


class Ended(NamedTuple):
    """What a run gave."""

    status: int
    out: str
    err: str


class Operator:
    """Somebody who has copied the plugin into a directory of PATH."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.folder = cluster.settings.state / "operator"
        self.folder.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / "deploy/plugin/kubectl-bpfsvc", self.folder)

    def environment(self, kubeconfig: Path | None = None) -> dict[str, str]:
        """Return the environment; the kubeconfig is the administrator's by default."""
        path = f"{self.folder}:{self.cluster.settings.bin}:{os.environ['PATH']}"
        config = str(kubeconfig or self.cluster.settings.kubeconfig)
        return {**os.environ, "PATH": path, "KUBECONFIG": config}

    def run(self, *words: str, given: str = "", kubeconfig: Path | None = None) -> Ended:
        """Run ``kubectl bpfsvc``."""
        running = self.start(*words, kubeconfig=kubeconfig)
        out, err = running.communicate(given, timeout=_SECONDS)
        return Ended(running.returncode, out, err)

    def start(self, *words: str, kubeconfig: Path | None = None) -> subprocess.Popen[str]:
        """Start it."""
        return self.cluster.popen(
            # Whatever is started in the background of a script ignores an interrupt.
            ["env", "--default-signal=INT", "kubectl", "bpfsvc", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(kubeconfig),
            cwd=self.folder,
            start_new_session=True,
        )

    def expect(self, *words: str, status: int = 0, given: str = "") -> str:
        """Return the output of a run that ends with this status and says nothing else."""
        done = self.run(*words, given=given)
        if (done.status, done.err) != (status, ""):
            raise AssertionError(f"{' '.join(words)}: {done}")
        return done.out


Case = Callable[[Operator], None]


def run(cluster: Cluster, report: Report, _whole: bool) -> None:
    """Deploy bpfsvc and a Service, and run every command."""
    cluster.deploy_bpfsvc()
    cluster.apply(yaml.safe_dump_all(_objects()))
    cluster.rolled_out("deployment", "web", NAMESPACE)
    cluster.kubectl(
        "wait", "--for=condition=Ready", "-n", NAMESPACE, "pod/client", "--timeout=180s"
    )
    operator = Operator(cluster)
    for name, case in _CASES.items():
        with report.case(NAME, name):
            case(operator)
    cluster.kubectl("delete", "namespace", NAMESPACE)


def _objects() -> list[dict[str, Any]]:
    """Return a Service whose only pods are on one node, and a client on another."""
    server = {
        "name": "server",
        "image": images.AGNHOST,
        "args": ["netexec", "--http-port=8080"],
        "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
    }
    place = {"nodeSelector": {"kubernetes.io/hostname": _SERVED}}
    app = {"app": "web"}

    def head(version: str, kind: str, name: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": NAMESPACE}
        return {"apiVersion": version, "kind": kind, "metadata": metadata}

    waiting = {"name": "client", "image": images.AGNHOST, "args": ["pause"]}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            **head("apps/v1", "Deployment", "web"),
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": app},
                "template": {
                    "metadata": {"labels": app},
                    "spec": {"containers": [server], **place},
                },
            },
        },
        {
            **head("v1", "Service", "web"),
            "spec": {"selector": app, "ports": [{"port": 80, "targetPort": 8080}]},
        },
        {
            **head("v1", "Pod", "client"),
            "spec": {"containers": [waiting], "nodeName": _CLIENT},
        },
    ]


def _show_status(operator: Operator) -> None:
    lines = operator.expect("status").splitlines()
    assert (
        lines[-1]
        == f"{len(operator.cluster.nodes)} of {len(operator.cluster.nodes)} nodes are well"
    )
    rows = json.loads(operator.expect("status", "-o", "json"))["nodes"]
    assert {row["node"] for row in rows} == operator.cluster.nodes.keys()
    for row in rows:
        assert row["well"], row
        assert row["status"]["maps"]["services"]["entries"] > 0
        assert row["status"]["lag_seconds"] is not None


def _miss_an_agent(operator: Operator) -> None:
    """An agent is stopped, so that its node does not answer as a node that is well does."""
    cluster, label = operator.cluster, "bpfsvc.io/none"
    avoid = {"key": label, "operator": "DoesNotExist"}
    rule = {"nodeSelectorTerms": [{"matchExpressions": [avoid]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": rule}}
    patch = json.dumps({"spec": {"template": {"spec": {"affinity": affinity}}}})
    where = ("-n", "kube-system", "daemonset/bpfsvc")
    cluster.kubectl("label", "node", _CLIENT, f"{label}=1")
    cluster.kubectl("patch", *where, "-p", patch)
    try:
        cluster.rolled_out("daemonset", "bpfsvc", "kube-system")
        wait(lambda: operator.run("status").status == 1, "the node has no agent", _SECONDS)
        row = operator.run("status").out.splitlines()[1].split()
        assert row[:1] == [_CLIENT], row
        assert row[2:4] == ["no", "agent"], row
        assert operator.run("history", "--node", _CLIENT).status == 1
    finally:
        cluster.kubectl("label", "node", _CLIENT, f"{label}-")
        cluster.kubectl("patch", *where, "-p", patch.replace(json.dumps(affinity), "null"))
        cluster.rolled_out("daemonset", "bpfsvc", "kube-system")
        wait(lambda: operator.run("status").status == 0, "all nodes are well again", _SECONDS)


def _pass_on(operator: Operator) -> None:
    service = f"{NAMESPACE}/web"
    pod = f"{NAMESPACE}/client"
    assert service in operator.expect("services", "--pod", pod, service)
    assert "dnat" in operator.expect("explain", pod, "TCP", f"{service}:80")
    assert service in operator.expect("history", "--service", service, service)
    names = {line.split()[0] for line in operator.expect("top", "--all", "--once").splitlines()}
    assert names == operator.cluster.nodes.keys()
    documents = json.loads(operator.expect("services", "--all", "-o", "json", service))
    assert documents.keys() == operator.cluster.nodes.keys()
    assert all(documents.values())


def _observe(operator: Operator) -> None:
    """A command that goes on ends in the pod, when the operator has seen enough."""
    cluster = operator.cluster
    service = f"{NAMESPACE}/web"
    running = operator.start("observe", "--all", "--follow", "--", "--service", service)
    with running:
        lines = running.stdout
        assert lines
        wait(lambda: _observers(cluster) == len(cluster.nodes), "all nodes observe", _SECONDS)
        address = cluster.kubectl(
            "-n", NAMESPACE, "get", "svc/web", "-o=jsonpath={.spec.clusterIP}"
        )
        ask = ("curl", "-s", "-o", "/dev/null", f"http://{address}/")

        def shown() -> bool:
            # A command that has started may not observe yet.
            cluster.enter(_CLIENT, ask)
            return bool(select.select([lines], [], [], 1)[0])

        wait(shown, "a line about a connection", _SECONDS)
        line = lines.readline()
        assert line.startswith(f"{_CLIENT}  "), line
        assert service in line
        os.killpg(running.pid, signal.SIGINT)
        running.communicate(timeout=_SECONDS)
    wait(lambda: _observers(cluster) == 0, "the commands end in the pods", _SECONDS)


def _observers(cluster: Cluster) -> int:
    """Return how many ``bpfsvc observe`` run on the nodes."""
    words = "tr '\\0' ' ' | grep -o 'end-with-stdin[ ]observe' | wc -l"
    script = f"cat /proc/[0-9]*/cmdline 2>/dev/null | {words}"
    return sum(int(cluster.enter(name, ["sh", "-c", script]) or 0) for name in cluster.nodes)


def _sysdump(operator: Operator) -> None:
    operator.expect("sysdump", "-o", "dump")
    files = {file.name: file.read_bytes() for file in (operator.folder / "dump").iterdir()}
    assert all(files.values())
    nodes = operator.cluster.nodes
    assert {name.split(".")[0] for name in files} == {"status", *nodes}
    for node in nodes:
        assert b"bpfsvc" in files[f"{node}.log"], node


def _drain(operator: Operator) -> None:
    """What is announced is what happens: the Service has no endpoint."""
    cluster = operator.cluster
    out = operator.expect("simulate-drain", _SERVED, "-o", "json", status=1)
    losses = {loss["service"]: loss for loss in json.loads(out)["losses"]}
    assert losses[f"{NAMESPACE}/web"]["loses"] == "endpoint"
    assert losses[f"{NAMESPACE}/web"]["endpoints"] == 2
    out = operator.run("simulate-drain", _CLIENT, "-o", "json").out
    assert f"{NAMESPACE}/client" in json.loads(out)["pods_without_owner"]
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
    try:
        cluster.kubectl("drain", _SERVED, *options)

        def ready() -> int:
            label = "--selector=kubernetes.io/service-name=web"
            slices = cluster.get("endpointslices", "-n", NAMESPACE, label)
            points = [point for part in slices for point in part.get("endpoints") or []]
            return sum(bool(point["conditions"].get("ready")) for point in points)

        wait(lambda: ready() == 0, "the Service has no endpoint", _SECONDS)
    finally:
        cluster.kubectl("uncordon", _SERVED)
        cluster.rolled_out("deployment", "web", NAMESPACE)


def _validate(operator: Operator) -> None:
    service = (
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, annotations: {%s}}\n"
        "spec: {ports: [{port: 80}]}\n"
    )
    good, bad = service % "bpfsvc.io/scheduler: rr", service % "bpfsvc.io/shceduler: rr"
    operator.expect("validate", "-", given=good)
    (operator.folder / "bad.yaml").write_text(bad)
    out = operator.expect("validate", "bad.yaml", status=1)
    assert "bad.yaml:3: " in out
    assert "did you mean bpfsvc.io/scheduler?" in out


def _upgrade(operator: Operator) -> None:
    """The new image has another layout of connections; another one does not exist."""
    cluster, folder = operator.cluster, operator.folder
    assert "may be upgraded" in operator.expect("upgrade", "--check")
    changed = folder / "changed.oci.tar"
    compiled = compile_changed(folder / "changed")
    make_changed_image(cluster.settings.folder / ARCHIVE, _CHANGED_IMAGE, changed, compiled)
    cluster.add_image(changed)
    words = ("upgrade", "--check", "-o", "json", "--image")
    findings = json.loads(operator.expect(*words, _CHANGED_IMAGE))["findings"]
    texts = [row["text"] for row in findings if row["subject"] == "connections"]
    assert [text.partition("entries ")[2] for text in texts] == [
        "get another layout and are copied, while they are used; none is cut"
    ], findings
    missing = json.loads(operator.expect(*words, "docker.io/bpfsvc-test/none:1", status=1))
    assert [row["subject"] for row in missing["findings"] if row["level"] == "STOP"] == ["image"]
    pods = cluster.get("pods", "-n", "kube-system", "-l", "app.kubernetes.io/name=bpfsvc-command")
    assert all(pod["metadata"].get("deletionTimestamp") for pod in pods)


def _lack_rights(operator: Operator) -> None:
    """A user who may read Nodes and Pods, but run nothing in them."""
    cluster = operator.cluster
    cluster.kubectl("-n", NAMESPACE, "create", "serviceaccount", "jane")
    cluster.kubectl("create", "clusterrole", "jane", "--verb=get,list", "--resource=nodes,pods")
    account = f"--serviceaccount={NAMESPACE}:jane"
    cluster.kubectl("create", "clusterrolebinding", "jane", "--clusterrole=jane", account)
    config = operator.folder / "jane.conf"
    shutil.copy(cluster.settings.kubeconfig, config)
    token = cluster.kubectl("-n", NAMESPACE, "create", "token", "jane").strip()
    fields = yaml.safe_load(config.read_text())
    fields["users"] = [{"name": user["name"], "user": {"token": token}} for user in fields["users"]]
    config.write_text(yaml.safe_dump(fields))
    try:
        user = f"system:serviceaccount:{NAMESPACE}:jane"
        for words, right in (
            (("status",), "pods/exec in namespace kube-system"),
            (("simulate-drain", _SERVED), "services in the whole cluster"),
        ):
            done = operator.run(*words, kubeconfig=config)
            assert (done.status, done.out) == (1, ""), done
            error, hint = done.err.splitlines()
            assert error.startswith(f"Error: {user} lacks the right to "), done
            assert error.endswith(right), done
            assert hint.startswith("Hint: see: kubectl auth can-i "), done
    finally:
        cluster.kubectl("delete", "clusterrolebinding,clusterrole", "jane")


_CASES: Final[dict[str, Case]] = {
    "status shows all nodes, and that they are well": _show_status,
    "commands run on the nodes of pods and Services, and on all": _pass_on,
    "observe ends in the pods with the operator's command": _observe,
    "archives of all nodes are collected": _sysdump,
    "what a drain is said to take is what it takes": _drain,
    "an agent checks manifests": _validate,
    "a new image says what becomes of connections": _upgrade,
    "a right that lacks is named in one line": _lack_rights,
    "a node without an agent is a row that says so": _miss_an_agent,
}
