"""An empty mode in a file: what it means depends on the release of Kubernetes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bpfsvc.config import documents
from bpfsvc.config.config import Config
from bpfsvc.config.loading import Documents, load
from bpfsvc.config.release import Release, read_release
from bpfsvc.config.watch import ConfigChanged, Reload
from tests.config.settings import FILE, HEAD, KUBEADM, OWN_HEAD, config, given, of_text


def of_release(release: Release | None, text: str = KUBEADM) -> Documents:
    """Load a file on a node whose API server is of a release; None if it does not answer."""
    return load(
        given("--config", str(FILE)),
        lambda path: documents.parse(text.encode(), path),
        lambda *_: release,
    )


def settings(loaded: Documents) -> Config:
    return replace(config(loaded), document={})


@pytest.mark.parametrize(
    ("release", "mode", "node_ports", "note"),
    [
        ((1, 36), "iptables", (), "iptables to kube-proxy 1.36, the release of the API server"),
        ((1, 39), "iptables", (), "iptables to kube-proxy 1.39, the release of the API server"),
        (
            (1, 40),
            "nftables",
            ("primary",),
            "nftables to kube-proxy 1.40, the release of the API server",
        ),
        (
            None,
            "iptables",
            (),
            "iptables to kube-proxy before 1.40; the release of the API server is not known",
        ),
    ],
)
def test_an_empty_mode_means_what_kube_proxy_of_the_servers_release_takes_it_for(
    release: Release | None, mode: str, node_ports: tuple[str, ...], note: str
) -> None:
    loaded = of_release(release)
    assert (config(loaded).mode, config(loaded).nodeport_addresses) == (mode, node_ports)
    assert loaded.notes[0] == f'mode is "", which is {note}'


def test_blocks_of_the_other_mode_do_not_count() -> None:
    text = HEAD + "mode: ''\niptables: {masqueradeAll: true}\nnftables: {syncPeriod: 7s}\n"
    old, new = config(of_release((1, 39), text)), config(of_release((1, 40), text))
    assert (old.masquerade_all, old.sync_seconds) == (True, 30)
    assert (new.masquerade_all, new.sync_seconds) == (False, 7)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(HEAD + "mode: nftables\n", id="a mode"),
        pytest.param(HEAD + "bindAddress: 0.0.0.0\n", id="no mode"),
        pytest.param(KUBEADM + OWN_HEAD + "manifests: /etc/bpfsvc\n", id="no API server"),
    ],
)
def test_the_server_is_not_asked_where_its_release_means_nothing(text: str) -> None:
    def ask(*_: object) -> None:
        raise AssertionError("asked")

    load(given("--config", str(FILE)), lambda path: documents.parse(text.encode(), path), ask)


def test_the_file_of_kubeadm_1_37_names_the_mode_and_means_the_same() -> None:
    """kubeadm writes ``mode: iptables`` since 1.37, and ``""`` before."""
    newer = of_text(KUBEADM.replace('mode: ""', "mode: iptables"))
    assert settings(newer) == settings(of_release((1, 36)))
    assert [note.partition(":")[0] for note in newer.notes] == ["nodePortAddresses is not set"]
    assert newer.warnings == ()


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ({"major": "1", "minor": "37", "gitVersion": "v1.37.0"}, (1, 37)),
        ({"major": "1", "minor": "38+", "gitVersion": "v1.38.0-alpha.2"}, (1, 38)),
        ({"major": "", "minor": ""}, None),
        ({}, None),
    ],
)
def test_the_release_of_a_server_is_read(version: dict[str, str], release: Release | None) -> None:
    assert read_release(version) == release


class Running:
    """An agent that began with a release of the API server."""

    def __init__(self, path: Path, release: Release | None, text: str = KUBEADM) -> None:
        path.write_text(text)
        self.ended = 0
        flags = given("--config", str(path))
        self.reload = Reload(flags, load(flags, ask_release=lambda *_: release), self.end)

    def end(self) -> None:
        self.ended += 1


def test_an_agent_that_began_without_the_release_ends_if_it_means_another_mode(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path / "config.conf", None)
    running.reload.use_release((1, 39))
    running.reload.use_release(None)
    assert running.ended == 0
    running.reload.use_release((1, 40))
    assert running.ended == 1
    with pytest.raises(ConfigChanged, match=r'mode "" is nftables to kube-proxy 1\.40'):
        running.reload.check()


def test_a_mode_that_is_given_does_not_depend_on_the_release(tmp_path: Path) -> None:
    text = KUBEADM.replace('mode: ""', "mode: iptables")
    running = Running(tmp_path / "config.conf", None, text)
    running.reload.use_release((1, 40))
    assert running.ended == 0


def test_a_change_of_the_file_is_read_for_the_same_release(tmp_path: Path) -> None:
    running = Running(tmp_path / "config.conf", (1, 40))
    running.reload(KUBEADM.encode() + b"# a comment\n")
    assert running.ended == 0
