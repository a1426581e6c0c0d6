"""What commands learn from the API server about an empty mode in kube-proxy's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bpfsvc.cli import server_release
from bpfsvc.cli.main import main
from bpfsvc.cli.server_release import ask_release
from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.supply import kubeconfig
from tests.apiserver.fixtures import api
from tests.config.settings import KUBEADM

__all__ = ["api"]


@pytest.fixture
def login(api: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(api.url())))
    return path


def test_the_server_of_a_kubeconfig_says_its_release(api: ApiServer, login: Path) -> None:
    assert ask_release(str(login), "") == (1, 36)
    api.faults.minor = "40+"
    assert ask_release("", api.url()) == (1, 40)


def test_a_server_that_does_not_answer_is_not_waited_for(
    api: ApiServer, login: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_release, "_PATIENCE", 0.05)
    api.faults.hang = True
    assert ask_release(str(login), "") is None
    api.faults.hang = False


@pytest.mark.parametrize("given", ["/missing", ""])
def test_without_a_usable_login_there_is_no_release(given: str) -> None:
    assert ask_release(given, "") is None


@pytest.mark.parametrize(("minor", "mode"), [("39", "iptables"), ("40", "nftables")])
def test_the_doctor_says_what_an_empty_mode_means(
    api: ApiServer, login: Path, tmp_path: Path, minor: str, mode: str
) -> None:
    api.faults.minor = minor
    path = tmp_path / "config.conf"
    path.write_text(KUBEADM.replace("/var/lib/kube-proxy/kubeconfig.conf", str(login)))
    done = CliRunner().invoke(main, ["doctor", "--config", str(path)])
    shown = " ".join(done.output.split())
    assert f"ok config: {path} can be used, in mode {mode}" in shown
    assert (
        f'note config: mode is "", which is {mode} to kube-proxy 1.{minor},'
        " the release of the API server"
    ) in shown
