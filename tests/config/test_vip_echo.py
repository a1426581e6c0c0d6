"""Whether pings of Services are answered: by our own setting, else as kube-proxy's mode does."""

from __future__ import annotations

import pytest

from bpfsvc.base.errors import UsageError
from bpfsvc.model import Node
from tests.config.settings import HEAD, OWN_HEAD, config, of_flags, of_text

CASES = {
    "nothing": ("", "", False),
    "mode ipvs": ("mode: ipvs\n", "", True),
    "another mode": ("mode: iptables\n", "", False),
    "auto in mode ipvs": ("mode: ipvs\n", "vipEcho: auto\n", True),
    "off in mode ipvs": ("mode: ipvs\n", 'vipEcho: "off"\n', False),
    "off without quotes, which is false in YAML": ("mode: ipvs\n", "vipEcho: off\n", False),
    "on in another mode": ("mode: iptables\n", 'vipEcho: "on"\n', True),
    "on without quotes, which is true in YAML": ("", "vipEcho: on\n", True),
}


@pytest.mark.parametrize(("fields", "own", "expected"), CASES.values(), ids=CASES.keys())
def test_a_file_says_whether_pings_are_answered(fields: str, own: str, expected: bool) -> None:
    agent = config(of_text(f"{HEAD}{fields}{OWN_HEAD}{own}"))
    assert agent.vip_echo is agent.services(Node("node-1")).vip_echo is expected


def test_a_flag_overrides_the_file() -> None:
    text = f"{HEAD}mode: ipvs\n{OWN_HEAD}"
    assert config(of_text(text, "--vip-echo=off")).vip_echo is False
    assert config(of_text(text + "vipEcho: off\n", "--vip-echo=auto")).vip_echo is True
    assert config(of_flags("--vip-echo=on")).vip_echo is True
    assert config(of_flags("--proxy-mode=ipvs")).vip_echo is True


def test_other_words_are_errors() -> None:
    with pytest.raises(UsageError, match="vipEcho"):
        of_text(f"{HEAD}{OWN_HEAD}vipEcho: sometimes\n")
