"""etcd, the API server, the controller manager and the scheduler, on the machine ``api``."""

from __future__ import annotations

import base64
import secrets
import subprocess
from pathlib import Path

import yaml

from bpfsvc.devtools.lab.netns import NetworkNamespace
from bpfsvc.devtools.lab.patience import wait
from tests.cluster.addresses import API, API_PORT, POD_CIDRS, SERVICE_CIDRS
from tests.cluster.certificates import ACCOUNTS, KUBELET_CLIENT, SERVER, Certificates
from tests.cluster.errors import ClusterError
from tests.cluster.processes import Processes
from tests.cluster.settings import Settings

URL = f"https://{API.v4}:{API_PORT}"

_ETCD = "http://127.0.0.1:2379"
_ETCD_PEER = "http://127.0.0.1:2380"
_ISSUER = "https://kubernetes.default.svc.cluster.local"
_START_SECONDS = 120

ETCD, SERVER_PROCESS = "etcd", "kube-apiserver"
_CONTROLLERS, _SCHEDULER = "kube-controller-manager", "kube-scheduler"
_LAST_FIRST = (_SCHEDULER, _CONTROLLERS, SERVER_PROCESS, ETCD)


class ControlPlane:
    """The four processes. ``start_server`` and ``stop_server`` are the API server's alone."""

    def __init__(self, settings: Settings, processes: Processes) -> None:
        self.settings = settings
        self.processes = processes
        self.certificates = Certificates(settings.state / "certificates")

    def start(self) -> None:
        """Make certificates and the administrator's kubeconfig, and start everything."""
        self.certificates.make()
        token = secrets.token_hex(16)
        self._tokens.write_text(f"{token},admin,admin,system:masters\n")
        self._write_kubeconfig(token)
        self._start(
            ETCD,
            f"--data-dir={self.settings.state / 'etcd'}",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            f"--listen-peer-urls={_ETCD_PEER}",
            "--unsafe-no-fsync",
        )
        self.start_server()
        self._start(_CONTROLLERS, *self._kubeconfig_flags(), *self._controller_flags())
        self._start(_SCHEDULER, *self._kubeconfig_flags())

    def start_server(self) -> None:
        """Start the API server and wait until it is ready."""
        self._start(SERVER_PROCESS, *self._server_flags())
        wait(self._ready, f"kube-apiserver is ready ({self._log(SERVER_PROCESS)})", _START_SECONDS)

    def stop_server(self) -> None:
        """End the API server; the rest of the cluster goes on without."""
        self.processes.stop(SERVER_PROCESS)

    def stop(self) -> None:
        """End everything that runs. Without its etcd, an API server would wait for ever."""
        for name in _LAST_FIRST:
            self.processes.stop(name, kill=True)

    @property
    def _tokens(self) -> Path:
        return self.certificates.folder / "tokens.csv"

    def _log(self, name: str) -> Path:
        return self.processes.log(name)

    def _start(self, name: str, *flags: str) -> None:
        namespace = NetworkNamespace(API.name, prefix=self.settings.prefix)
        self.processes.start(name, [self.settings.bin / name, *flags], namespace=namespace)
        namespace.release()

    def _ready(self) -> bool:
        if self.processes.number(SERVER_PROCESS) is None:
            log = self._log(SERVER_PROCESS)
            last = log.read_text().strip().rpartition("\n")[2]
            raise ClusterError(f"kube-apiserver has ended: {last}", f"see {log}")
        namespace = NetworkNamespace(API.name, prefix=self.settings.prefix)
        with namespace.entered():
            asked = subprocess.run(
                [
                    self.settings.bin / "kubectl",
                    f"--kubeconfig={self.settings.kubeconfig}",
                    *("get", "--raw", "/readyz"),
                ],
                capture_output=True,
                check=False,
            )
        namespace.release()
        return asked.returncode == 0

    def _write_kubeconfig(self, token: str) -> None:
        authority = base64.b64encode(self.certificates.authority.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "cluster",
                    "cluster": {"server": URL, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "admin", "context": {"cluster": "cluster", "user": "admin"}}],
            "current-context": "admin",
        }
        self.settings.kubeconfig.write_text(yaml.safe_dump(config))
        self.settings.kubeconfig.chmod(0o600)

    def _kubeconfig_flags(self) -> list[str]:
        names = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        files = [f"--{name}={self.settings.kubeconfig}" for name in names]
        return [*files, "--leader-elect=false", "--authentication-skip-lookup"]

    def _server_flags(self) -> list[str]:
        key, certificate = self.certificates.key, self.certificates.certificate
        return [
            f"--etcd-servers={_ETCD}",
            f"--bind-address={API.v4}",
            f"--advertise-address={API.v4}",
            f"--secure-port={API_PORT}",
            f"--tls-cert-file={certificate(SERVER)}",
            f"--tls-private-key-file={key(SERVER)}",
            f"--client-ca-file={self.certificates.authority}",
            f"--service-cluster-ip-range={','.join(SERVICE_CIDRS)}",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={key(ACCOUNTS)}",
            f"--service-account-signing-key-file={key(ACCOUNTS)}",
            f"--token-auth-file={self._tokens}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            f"--kubelet-client-certificate={certificate(KUBELET_CLIENT)}",
            f"--kubelet-client-key={key(KUBELET_CLIENT)}",
            "--kubelet-preferred-address-types=InternalIP",
            "--runtime-config=api/all=true",
        ]

    def _controller_flags(self) -> list[str]:
        return [
            "--allocate-node-cidrs",
            f"--cluster-cidr={','.join(POD_CIDRS)}",
            "--node-cidr-mask-size-ipv4=24",
            "--node-cidr-mask-size-ipv6=64",
            f"--service-cluster-ip-range={','.join(SERVICE_CIDRS)}",
            f"--service-account-private-key-file={self.certificates.key(ACCOUNTS)}",
            f"--root-ca-file={self.certificates.authority}",
            f"--cluster-signing-cert-file={self.certificates.authority}",
            f"--cluster-signing-key-file={self.certificates.authority_key}",
        ]
