"""The corrections of loads: they are exact while connections neither begin nor end."""

from __future__ import annotations

from random import Random

import pytest

from bpfsvc.agent.flows.load_recount import correction
from bpfsvc.datapath.maps.backend_loads import Load

NONE = Load(0, 0)


def test_while_nobody_comes_or_goes_the_entries_are_right() -> None:
    assert correction(Load(5, 2), Load(5, 2), Load(5, 2), 0) == NONE
    assert correction(Load(5, 2), Load(9, 1), Load(9, 1), 0) == Load(-4, 1)
    assert correction(Load(5, 2), Load(-3, 70), Load(-3, 70), 0) == Load(8, -68)


def test_what_came_meanwhile_may_not_have_been_counted() -> None:
    assert correction(Load(5, 0), Load(5, 0), Load(8, 0), 3) == NONE
    assert correction(Load(5, 0), Load(9, 0), Load(12, 0), 3) == Load(-4, 0)


def test_what_left_meanwhile_may_have_been_counted() -> None:
    assert correction(Load(5, 0), Load(5, 0), Load(2, 3), 0) == NONE
    assert correction(Load(5, 0), Load(9, 0), Load(6, 3), 0) == Load(-1, 0)


@pytest.mark.parametrize("seed", range(200))
def test_right_numbers_are_never_corrected(seed: int) -> None:
    """Connections come and go between the reading of entries; the programs' numbers are right."""
    random = Random(seed)
    states = dict.fromkeys(range(random.randrange(30)), "active")
    states |= {connection: "inactive" for connection in states if random.random() < 0.3}
    before = load(states)
    counted = {"active": 0, "inactive": 0}
    chosen, unread, fresh = 0, list(states), 1000
    while unread:
        connection = unread.pop(random.randrange(len(unread)))
        if connection in states:
            counted[states[connection]] += 1
        for _ in range(random.randrange(3)):
            step = random.random()
            if step < 0.4:
                fresh += 1
                chosen += 1
                states[fresh] = "active"
                if random.random() < 0.5:
                    unread.append(fresh)
            elif states and step < 0.7:
                states[random.choice(list(states))] = "inactive"
            elif states:
                states.pop(random.choice(list(states)))
        if chosen > 60:
            unread = [connection for connection in unread if connection < 1000]
    total = Load(counted["active"], counted["inactive"])
    assert correction(total, before, load(states), chosen) == NONE


def load(states: dict[int, str]) -> Load:
    values = list(states.values())
    return Load(values.count("active"), values.count("inactive"))
