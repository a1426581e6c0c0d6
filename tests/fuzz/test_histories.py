"""Random histories on the programs as they are. Those that have failed once are kept here, too."""

from __future__ import annotations

import pytest

from bpfsvc.base.fast_path import ESTABLISHED, FAST
from tests.fuzz.events import Collect, Event, Foreign, Packet, Pause, Sequence, Upgrade, Write
from tests.fuzz.network import ALL_PATHS, Paths
from tests.fuzz.player import Player
from tests.fuzz.report import as_test
from tests.fuzz.run import failure_of, first_failure, history

HISTORIES = 12
"""Some ten seconds."""


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_the_programs_do_in_a_random_history_what_the_model_says(player: Player, seed: int) -> None:
    runs = player.runs
    failure = first_failure(player, seed)
    assert failure is None, f"keep this test:\n{as_test(failure)}"
    assert player.runs > runs + 1000


def test_histories_open_connections_and_see_them_end(player: Player) -> None:
    """Otherwise a history would hold nothing against the model."""
    before = player.seen.copy()
    for seed in range(100, 106):
        for event in history(player, seed):
            player.step(event)
    seen = player.seen - before
    for name in (
        *("connections opened", "connections masqueraded", "connections collected"),
        *("packets of clients", "packets of servers", "first packets refused"),
        *("packets of no connection reset", "writes of the control plane"),
        *("errors about packets", "later fragments", "fragments that wait"),
        *("packets by XDP", "flows made fast in their middle"),
        *(f"packets by the fast path, level {level}" for level in (FAST, ESTABLISHED)),
    ):
        assert seen[name] >= 10, f"{name}: {seen}"


def test_a_seed_replays(player: Player) -> None:
    """The same random choices, and so the same backends and ports."""
    states = []
    for _ in range(2):
        for event in history(player, 5, events=800):
            player.step(event)
        states.append({key: str(made) for key, made in player.model.connections.items()})
    assert states[0]
    assert states[0] == states[1]


def sent(
    target: int,
    client: int,
    port: int,
    flags: int = 16,
    *,
    family: int = 4,
    sender: int = 0,
    number: int = 0,
) -> Packet:
    """Make an event of a plain packet."""
    plain = Packet._make([0] * len(Packet._fields))
    ends = plain._replace(family=family, target=target, client=client, port=port)
    return ends._replace(sender=sender, flags=flags, number=number)


KEPT: dict[str, tuple[int, list[Event]]] = {
    "a backend connects twice from the port that it serves": (
        77000071,
        [
            sent(9, 2, 1, 2),
            sent(9, 2, 1, 16, sender=1),
            sent(9, 2, 1, 17),
            sent(9, 2, 1, 17, sender=1),
            sent(9, 2, 1, 2, sender=1),
            sent(9, 2, 1),
            sent(9, 2, 1, 2, sender=1),
            sent(9, 2, 1),
        ],
    ),
    "a client that has got no port sends again while none is free": (
        78000076,
        [
            Write(service=0, number=2439750759),
            sent(1, 1, 3, number=4266881943),
            sent(2, 0, 0, number=713444413),
            sent(4, 2, 3),
            Foreign(family=4, target=4, client=2, port=3),
            sent(1, 3, 3, number=3373364537),
            Foreign(family=4, target=1, client=3, port=3),
            sent(4, 2, 1),
            sent(4, 3, 0),
            sent(5, 1, 2, number=2371768756),
            sent(5, 1, 2),
        ],
    ),
    "a client opens anew what its backend may have removed": (
        28000148,
        [
            Write(service=0, number=344035747),
            sent(0, 2, 2, 2),
            sent(0, 2, 2, sender=1),
            sent(0, 2, 2),
            sent(0, 2, 2, 4),
            sent(0, 2, 2, 2, sender=1),
            sent(0, 2, 2),
            sent(0, 2, 2, sender=1),
            sent(0, 2, 2),
            sent(0, 2, 2, 2, sender=1),
            sent(0, 2, 2, 2),
            Collect(crowded=False),
            Pause(ns=3_000_000_000),
            Collect(crowded=True),
        ],
    ),
    "late packets of both sides open nothing anew, after the backend has opened its own": (
        52000002,
        [
            sent(1, 3, 3, 2),
            sent(1, 3, 3, sender=1),
            sent(1, 3, 3),
            sent(1, 3, 3, 21, sender=1),
            sent(1, 3, 3, 2, sender=1),
            sent(1, 3, 3),
            sent(1, 3, 3, sender=1),
            sent(1, 3, 3),
            sent(1, 3, 3, 34, sender=1),
            sent(26, 3, 3, 2),
        ],
    ),
    "netfilter gets the port of a connection that is perhaps over": (
        51000421,
        [
            sent(8, 4, 3, 2, family=6, number=1920860708),
            sent(13, 0, 3, 1, family=6),
            sent(7, 2, 2, 2, family=6),
            sent(8, 4, 3, 6, family=6),
            Foreign(family=6, target=13, client=0, port=3),
            Pause(ns=3_000_000_000),
            sent(17, 4, 2),
            Foreign(family=4, target=17, client=4, port=2),
            sent(8, 0, 1, 2, family=6),
            sent(8, 3, 3, 2, family=6, number=1271550083),
            Foreign(family=6, target=8, client=3, port=3),
        ],
    ),
    "a backend connects to a port that netfilter has since the connection before": (
        71000830,
        [
            sent(18, 3, 1, 2, number=2766146352),
            Write(service=2, number=1216657558),
            sent(3, 0, 0, family=6),
            sent(18, 3, 1, sender=1),
            sent(9, 2, 3, 1, family=6),
            sent(5, 1, 1),
            Foreign(family=4, target=5, client=1, port=1),
            sent(18, 3, 1, 17),
            sent(13, 1, 3, number=3741374376),
            Foreign(family=4, target=18, client=3, port=1),
            sent(18, 3, 1, 17, sender=1),
            sent(18, 3, 1, 2),
            sent(17, 4, 0, 2, number=33621464),
            sent(17, 4, 0, 21),
            sent(17, 4, 0, 34, sender=1),
            sent(17, 4, 0),
        ],
    ),
    "netfilter gets the port of datagrams without an answer, where ports are short": (
        101002273,
        [
            Write(service=0, number=3887973234),
            Write(service=3, number=989812609),
            sent(0, 1, 0, family=6),
            Foreign(family=6, target=0, client=1, port=0),
            Write(service=2, number=2655350459),
            Write(service=0, number=840113036),
            sent(0, 3, 0, family=6),
            sent(13, 1, 3, family=6),
            sent(0, 2, 0, family=6),
            sent(18, 1, 1, family=6, number=758880329),
            sent(17, 1, 1),
            sent(3, 3, 2, family=6),
            sent(1, 3, 2),
            sent(3, 3, 0, family=6),
            Pause(ns=11_000_000_000),
            Foreign(family=6, target=3, client=3, port=0),
        ],
    ),
    "a client connects past the Service, after a connection that ended before its masquerade": (
        102002630,
        [
            sent(5, 2, 3, 2),
            sent(5, 2, 3, sender=1),
            sent(5, 2, 3, 4, sender=1),
            sent(5, 2, 3, 2, sender=1),
            sent(5, 2, 3),
            sent(5, 2, 3, 20, sender=1)._replace(sequence=Sequence.IN_WINDOW),
            sent(5, 2, 3, 2),
            Pause(ns=11_000_000_000),
            Collect(crowded=False),
            sent(23, 2, 3, 2),
        ],
    ),
    "no port is free for a datagram in fragments": (
        210007174,
        [
            Write(service=2, number=3173145684),
            sent(8, 2, 0),
            sent(9, 2, 2),
            sent(9, 1, 1),
            sent(12, 3, 2),
            sent(13, 1, 1),
            sent(15, 1, 3),
            sent(11, 4, 0),
            sent(11, 2, 0),
            sent(15, 2, 2)._replace(length=1000, cut=24),
        ],
    ),
    "a connection that the old build opens in an upgrade, and the new build closes": (
        402003648,
        [
            Upgrade(number=3310807833),
            Upgrade(number=3815002359),
            sent(0, 1, 0, 2),
            Upgrade(number=2514502400),
            sent(0, 1, 0, 17, sender=1),
            sent(0, 1, 0, 17),
            Upgrade(number=1469491426),
            Upgrade(number=2036157476),
            Pause(ns=11_000_000_000),
            Collect(crowded=False),
        ],
    ),
    "a client establishes and closes by one packet what an older build has opened": (
        410002329,
        [
            Upgrade(number=2398477171),
            Upgrade(number=3065599188),
            sent(23, 2, 0, 2),
            sent(23, 2, 0, sender=1),
            Upgrade(number=438096138),
            sent(23, 2, 0, 17),
            sent(23, 2, 0, 17, sender=1),
            Upgrade(number=1747085584),
            Upgrade(number=736917772),
            Pause(ns=11_000_000_000),
            Collect(crowded=False),
        ],
    ),
}


@pytest.mark.parametrize("paths", ALL_PATHS, ids=str)
@pytest.mark.parametrize("name", KEPT)
def test_what_was_different_once_is_not_any_more(player: Player, name: str, paths: Paths) -> None:
    """Late packets, masquerades, fragments and upgrades were faults of bpfsvc, others of the model.

    It expected a port that the connection did not have, or the end of what was opened anew.
    """
    seed, events = KEPT[name]
    assert not failure_of(player, seed, events, paths)
