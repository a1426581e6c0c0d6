"""The C sources as one text, and what identifies a build of them.

bcc rewrites map calls only in the main file, so includes are spliced in; ``#line`` keeps compiler
messages at the right place. Each header comes once, where it is first asked for, and includes all
that it uses: the order of includes means nothing. An installed package carries the sources beside
itself.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bpfsvc.base.map_sizes import SIZE_NAMES, Sizes

_INCLUDE = re.compile(r'^#include "([\w./]+)"$')
"""Paths are those below the folder of the main file."""

_ONCE = "#pragma once"
"""Stands in every header. The compiler would complain of it: for it there is but one file."""

MAIN = "bpfsvc.c"

LAYOUT_BYTES = 32768
"""Room for the description of all maps."""

PLACEHOLDER = 0x5100
_SIZE_STEP = 16
_PLACEHOLDERS = {
    name.upper(): PLACEHOLDER + _SIZE_STEP * index for index, name in enumerate(SIZE_NAMES)
}
"""What the sizes are compiled as. No map of a fixed size has so many entries."""


def directory() -> Path:
    """Return the directory of the C sources: in the package, or in a checkout by a link."""
    return Path(__file__).parents[2] / "bpf"


@dataclass(frozen=True)
class CSource:
    """The C program, and the sizes it is loaded with. What is compiled is equal for all sizes."""

    sizes: Sizes
    root: Path
    main: str = MAIN

    @cached_property
    def text(self) -> str:
        """The main file with its own includes spliced in."""
        return "\n".join(_splice(self.root, self.main, set()))

    @property
    def defines(self) -> dict[str, int]:
        """Macros the text is compiled with: a placeholder for each size."""
        return {**_PLACEHOLDERS, "LAYOUT_BYTES": LAYOUT_BYTES}

    @cached_property
    def code_digest(self) -> str:
        """Identify the compiled text: equal for all sizes."""
        return self._digest(self.defines)

    @cached_property
    def digest(self) -> str:
        """Identify the build: equal digests mean equal programs and maps."""
        return self._digest({**self.sizes.defines(), "LAYOUT_BYTES": LAYOUT_BYTES})

    def _digest(self, numbers: dict[str, int]) -> str:
        content = repr((self.text, sorted(numbers.items())))
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def load(sizes: Sizes) -> CSource:
    """Return the sources of this installation."""
    return CSource(sizes, directory())


def loaded_numbers(sizes: Sizes) -> dict[str, int]:
    """Return the numbers of sizes that are written into the instructions.

    They are named as in ``enum loaded_number``, which has those of ``Features.numbers()``, too.
    """
    return {
        "max_connections": sizes.max_connections,
        "mask_direct_flows": (1 << sizes.max_direct_flows.bit_length() - 1) - 1,
    }


def size_of(entries: int) -> tuple[str, int] | None:
    """Return the size that a map with so many entries was compiled with, and what was added to it.

    None if its number of entries is fixed.
    """
    index, more = divmod(entries - PLACEHOLDER, _SIZE_STEP)
    return (SIZE_NAMES[index], more) if 0 <= index < len(SIZE_NAMES) else None


def _splice(root: Path, name: str, included: set[str]) -> list[str]:
    """Return the lines of a file with its includes, but for those in ``included`` already."""
    included.add(name)
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate((root / name).read_text().splitlines(), 1):
        include = _INCLUDE.match(line)
        if include and include[1] not in included:
            lines += [*_splice(root, include[1], included), f'#line {number + 1} "{name}"']
        else:
            lines.append("" if include or line == _ONCE else line)
    return lines
