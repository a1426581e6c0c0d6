"""What an agent asks of its surroundings before it works.

Beside another that does Services it must not start: two translations of one packet end nowhere. And
past whoever guards the node, packets must not be led.

The agent asks this at its start, so it looks at no more than the judgement needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.doctor.finding import Level
from bpfsvc.doctor.judging.fastpath import doubts, found
from bpfsvc.doctor.judging.others import judge
from bpfsvc.doctor.looking import fastpath
from bpfsvc.doctor.looking.others import look
from bpfsvc.doctor.sightings import Guards
from bpfsvc.errors import BpfsvcError, SystemUnfit


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


def fast_path_doubt() -> str:
    """Say what speaks against the fast path on this node; "" if nothing does."""
    try:
        return next(doubts(_guards()), "")
    except (BpfsvcError, OSError) as error:
        return f"what guards the node cannot be seen: {error}"


def fast_path_guard() -> str:
    """Say who guards the node by now; "" also when that cannot be seen at this moment."""
    try:
        return next(found(_guards()), "")
    except (BpfsvcError, OSError):
        return ""


def _guards() -> Guards:
    with Conversation() as talk:
        return fastpath.look(read_network(talk))
