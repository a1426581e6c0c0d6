"""The scheduler of Services that name none, by bpfsvc's own settings and by kube-proxy's."""

from __future__ import annotations

import pytest

from bpfsvc.base.errors import UsageError
from bpfsvc.model import Node
from bpfsvc.services.scheduling.schedulers import Scheduler
from tests.config.settings import HEAD, OWN_HEAD, config, of_fields, of_flags, of_text

CASES = {
    "nothing": ("", "random"),
    "mode ipvs, as kubeadm writes it": ('mode: ipvs\nipvs: {scheduler: ""}', "rr"),
    "mode ipvs alone": ("mode: ipvs", "rr"),
    "a scheduler of mode ipvs": ("mode: ipvs\nipvs: {scheduler: sh}", "sh"),
    "mh, which kube-proxy has look at ports": ("mode: ipvs\nipvs: {scheduler: mh}", "mh,mh-port"),
    "a scheduler of mode ipvs in another mode": ("mode: iptables\nipvs: {scheduler: sh}", "random"),
    "a scheduler that counts connections": ("mode: ipvs\nipvs: {scheduler: lc}", "lc"),
    "a scheduler that keeps addresses where they are": (
        "mode: ipvs\nipvs: {scheduler: lblc}",
        "lblc",
    ),
    "a scheduler that is not there": ("mode: ipvs\nipvs: {scheduler: llc}", "random"),
}


@pytest.mark.parametrize(("fields", "expected"), CASES.values(), ids=CASES.keys())
def test_kube_proxys_scheduler_counts_in_mode_ipvs(fields: str, expected: str) -> None:
    agent = config(of_fields(fields))
    assert str(agent.scheduler) == expected
    assert agent.services(Node("node-1")).scheduler == agent.scheduler


def test_a_scheduler_of_our_own_comes_before_kube_proxys() -> None:
    text = f"{HEAD}mode: ipvs\nipvs: {{scheduler: lc}}\n{OWN_HEAD}scheduler: mh,mh-port\n"
    documents = of_text(text)
    assert config(documents).scheduler == Scheduler("mh", ("mh-port",))
    assert documents.warnings == ()
    assert any("ipvs.scheduler (it counts in mode ipvs" in note for note in documents.notes)
    assert config(of_text(text, "--scheduler=wrr")).scheduler == Scheduler("wrr")


def test_flags_set_either_scheduler() -> None:
    assert config(of_flags("--scheduler", "sh,sh-port")).scheduler == Scheduler("sh", ("sh-port",))
    both = of_flags("--proxy-mode=ipvs", "--ipvs-scheduler=dh")
    assert config(both).scheduler == Scheduler("dh")
    assert not any("--ipvs-scheduler" in note for note in both.notes)


def test_a_scheduler_that_is_not_there_is_one_warning_that_names_what_is_used() -> None:
    (warning,) = of_flags("--proxy-mode=ipvs", "--ipvs-scheduler=wllc").warnings
    assert warning.startswith("--ipvs-scheduler: scheduler 'wllc'")
    assert warning.endswith("; random is used instead")
    assert "\n" not in warning
    (warning,) = of_fields("mode: ipvs\nipvs: {scheduler: llc}").warnings
    assert warning.startswith("ipvs.scheduler: ")


def test_our_own_scheduler_must_be_one_that_is_there() -> None:
    for words, said in (("llc", "--scheduler: scheduler 'llc'"), ("rr,sh-port", "'sh-port'")):
        with pytest.raises(UsageError) as error:
            of_flags(f"--scheduler={words}")
        assert said in error.value.message
    with pytest.raises(UsageError, match=r"config\.conf:6: scheduler: scheduler 'x'"):
        of_text(f"{HEAD}{OWN_HEAD}scheduler: x\n")
