"""Refusing to start beside another that does Services: two translations of one packet end nowhere.

The agent asks this at its start, so it looks at no more than the judgement needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.doctor.finding import Level
from bpfsvc.doctor.judging.others import judge
from bpfsvc.doctor.looking.others import look
from bpfsvc.errors import SystemUnfit


def refuse_beside_others(pin_root: Path, devices: Sequence[str] = ()) -> None:
    """Raise ``SystemUnfit`` with the first finding that refuses.

    ``devices`` are the patterns of ``--devices``. kube-proxy is no reason: beside it one may start.
    """
    with Conversation() as talk:
        others = look(talk, read_network(talk), PinRoot(pin_root), devices)
    for finding in judge(others):
        if finding.level is Level.REFUSE:
            raise SystemUnfit(
                finding.text, f"{finding.hint} (bpfsvc doctor tells more; --allow-beside insists)"
            )
