"""Check that every C header under ``bpf/`` compiles by itself: that it includes all that it uses.

A header is checked where nothing precedes it but what it includes itself. So one compilation checks
a chain of headers, each of which includes the one before: half of the time of one each, some 16 s.
A missing include is an error that names the header. Root, or CAP_BPF, is needed: bcc makes the
maps.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader.compiler import CompileRequest, compile_module
from bpfsvc.datapath.loader.source import CSource, directory

_PROGRAM = """
int nothing(struct __sk_buff *skb)
{
	return 0;
}
"""

_ENTRIES = 16
"""Any capacity of the maps will do: nothing is written to them."""


def headers(root: Path) -> list[str]:
    """Return our headers, relative to ``root``; ``include/`` replaces headers of the kernel."""
    files = (file.relative_to(root) for file in root.rglob("*.h"))
    return sorted(str(file) for file in files if file.parts[0] != "include")


def all_includes(root: Path) -> dict[str, set[str]]:
    """Return what each header includes, itself or by another one."""
    text = {header: (root / header).read_text() for header in headers(root)}
    own = {header: re.findall(r'^#include "(.+)"$', text[header], re.MULTILINE) for header in text}
    closed: dict[str, set[str]] = {}

    def close(header: str) -> set[str]:
        if header not in closed:
            closed[header] = {*own[header]}
            for included in own[header]:
                closed[header] |= close(included)
        return closed[header]

    for header in own:
        close(header)
    return closed


def chains(includes: Mapping[str, set[str]]) -> list[list[str]]:
    """Return all headers in as few chains as there can be: each includes the one before it."""
    next_of: dict[str, str] = {}  # by the header that it includes

    def is_placed(header: str, seen: set[str]) -> bool:
        """True if ``header`` follows another one, perhaps after others were moved."""
        for included in includes[header] - seen:
            seen.add(included)
            if included not in next_of or is_placed(next_of[included], seen):
                next_of[included] = header
                return True
        return False

    for header in includes:
        is_placed(header, set())
    result = []
    for first in sorted(set(includes) - set(next_of.values())):
        chain = [first]
        while chain[-1] in next_of:
            chain.append(next_of[chain[-1]])
        result.append(chain)
    return result


def compiles(root: Path, chain: Sequence[str]) -> bool:
    """True if the headers compile, in this order. The compiler's errors go to standard error."""
    with tempfile.NamedTemporaryFile("w", suffix=".c") as main:
        main.write("".join(f'#include "{header}"\n' for header in chain))
        main.flush()
        source = CSource(Sizes(), root, main=main.name)
        text = source.text
    request = CompileRequest(
        text=text + _PROGRAM,
        digest="",
        defines=dict.fromkeys(source.defines, _ENTRIES),
        include=str(root / "include"),
    )
    try:
        compile_module(request)
    except BpfsvcError as error:
        sys.stderr.write(
            f"{root / chain[-1]}: does not compile after what it includes: {error.message}\n"
        )
        return False
    return True


def main() -> int:
    """Check all headers, also after one fails; return the exit status."""
    root = directory()
    failed = [chain for chain in chains(all_includes(root)) if not compiles(root, chain)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
