"""The rule for includes of C headers finds a header that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfsvc.datapath.loader.source import directory
from tests.lint.c_layers import forbidden_includes


def test_the_headers_keep_the_rule() -> None:
    assert not list(forbidden_includes(directory()))


@pytest.mark.parametrize(
    ("header", "included"),
    [
        ("lib/flow.h", "maps/settings.h"),
        ("lib/flow.h", "path/packet.h"),
        ("maps/settings.h", "path/packet.h"),
        ("path/packet.h", "path/fast/route.h"),
        ("path/fast/route.h", "path/step/open.h"),
        ("path/step/open.h", "path/step/first.h"),
        ("path/socket/lb.h", "path/xdp/parse.h"),
    ],
)
def test_an_include_of_a_higher_room_is_found(tmp_path: Path, header: str, included: str) -> None:
    file = tmp_path / header
    file.parent.mkdir(parents=True)
    file.write_text(f'#pragma once\n\n#include "lib/wire.h"\n#include "{included}"\n')
    assert list(forbidden_includes(tmp_path)) == [f"{file}: must not include {included}"]


def test_a_folder_without_a_place_in_the_rule_is_found(tmp_path: Path) -> None:
    file = tmp_path / "path" / "new" / "x.h"
    file.parent.mkdir(parents=True)
    file.write_text("#pragma once\n")
    assert "does not know this folder" in "".join(forbidden_includes(tmp_path))
