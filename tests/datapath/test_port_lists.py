"""Lists of ports in the kernel's notation."""

from __future__ import annotations

import pytest

from bpfsvc.base.ports import PortRange
from bpfsvc.datapath.sysctl import format_ports, merge, parse_ports, subtract

NOTATIONS = {
    "nothing": ("", ""),
    "single ports and ranges": ("8080,9148-9150", "8080,9148-9150"),
    "out of order": ("9,1-3", "1-3,9"),
    "touching and overlapping": ("1-3,4,3-6", "1-6"),
    "spaces": (" 1 , 2 ", "1-2"),
}


@pytest.mark.parametrize(("text", "expected"), NOTATIONS.values(), ids=NOTATIONS.keys())
def test_notation(text: str, expected: str) -> None:
    """What is read is written in its shortest form."""
    assert format_ports(parse_ports(text)) == expected


@pytest.mark.parametrize("text", ["x", "1-x", "70000", "5-3", "-5"])
def test_nonsense(text: str) -> None:
    """Anything else is an error."""
    with pytest.raises(ValueError, match=r".+"):
        parse_ports(text)


def test_merge_and_subtract() -> None:
    """Ranges are joined and cut as sets of ports are."""
    left, right = parse_ports("1-10,20"), parse_ports("5-6,11")
    assert format_ports(merge(left, right)) == "1-11,20"
    assert format_ports(subtract(left, right)) == "1-4,7-10,20"
    assert subtract(left, (PortRange(0, 65535),)) == ()
