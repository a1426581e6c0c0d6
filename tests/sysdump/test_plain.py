"""Values as JSON, and back."""

from __future__ import annotations

import json

import pytest

from bpfsvc.base.address import pack
from bpfsvc.base.ports import PortRange
from bpfsvc.doctor.facts import Facts, Match, PacketRule, ServedFrontend
from bpfsvc.doctor.finding import Finding, warning
from bpfsvc.model.plain import from_plain, shape_of, to_plain
from bpfsvc.services.entries import Frontend
from tests.doctor.test_doctor import FIT

FRONTEND = Frontend(pack("10.0.0.1"), 80, 6)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (PortRange(1, 2), PortRange),
        (FIT, Facts),
        ([warning("subject", "text", "hint")], list[Finding]),
        (
            ServedFrontend("a/b", FRONTEND, (pack("fd00::1"),)),
            ServedFrontend,
        ),
        (PacketRule("raw", "-A", 4, (Match(protocols=frozenset({"TCP"})),)), PacketRule),
        ((b"", b"abc", FRONTEND.address * 2), tuple[bytes, ...]),
    ],
)
def test_a_value_survives(value: object, kind: type) -> None:
    assert from_plain(json.loads(json.dumps(to_plain(value))), kind) == value


def test_addresses_are_texts() -> None:
    assert to_plain((pack("10.0.0.1"), 80)) == [{"@addresses": ["10.0.0.1"]}, 80]


def test_other_values_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected `int`"):
        from_plain(["a", 2], PortRange)


def test_the_shape_names_the_fields_of_all_facts() -> None:
    shape = shape_of(Facts)
    assert "PortRange:first,last" in shape
    assert "Match:networks,ports,protocols,original,negated" in shape
