"""Check that every C header under ``bpf/`` compiles by itself: that it includes all that it uses.

Each is compiled as the main file of a program that does nothing, so a missing include is an error
that names the header. All take some 10 s. Root, or CAP_BPF, is needed: bcc makes the maps of each
header.
"""

from __future__ import annotations

import sys
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
    found = (file.relative_to(root) for file in root.rglob("*.h"))
    return sorted(str(file) for file in found if file.parts[0] != "include")


def compiles_alone(root: Path, header: str) -> bool:
    """True if ``header`` compiles as a main file. The compiler's errors go to standard error."""
    source = CSource(Sizes(), root, main=header)
    request = CompileRequest(
        text=source.text + _PROGRAM,
        digest="",
        defines=dict.fromkeys(source.defines, _ENTRIES),
        include=str(root / "include"),
    )
    try:
        compile_module(request)
    except BpfsvcError as error:
        sys.stderr.write(f"{root / header}: does not compile by itself: {error.message}\n")
        return False
    return True


def main() -> int:
    """Check all headers, also after one fails; return the exit status."""
    root = directory()
    failed = [header for header in headers(root) if not compiles_alone(root, header)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
