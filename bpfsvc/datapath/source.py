"""The C sources as one text, and what identifies a build of them.

bcc rewrites map calls only in the main file, so includes are spliced in; ``#line`` keeps compiler
messages at the right place. An installed package carries the sources beside itself.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

_INCLUDE = re.compile(r'^#include "([\w.]+)"$')

MAIN = "bpfsvc.c"

LAYOUT_BYTES = 32768
"""Room for the description of all maps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Capacities of the maps, each with the option that sets it (``--max-frontends`` and so on)."""

    max_services: int = 65536
    max_frontends: int = 131072
    max_backends: int = 65536
    max_backend_slots: int = 262144
    max_connections: int = 1048576
    max_new_connections: int = 65536
    max_direct_flows: int = 262144
    max_node_addresses: int = 4096
    max_interfaces: int = 16384
    max_source_ranges: int = 65536
    max_affinities: int = 65536

    def defines(self) -> dict[str, int]:
        """Give them as the C sources know them."""
        return {name.upper(): value for name, value in asdict(self).items()}


MAP_FLAGS = {
    "services": "--max-services",
    "frontends": "--max-frontends",
    "backends": "--max-backend-slots",
    "endpoints": "--max-backends",
    "backend_counters": "--max-backends",
    "connections": "--max-connections",
    "new_connections": "--max-new-connections",
    "direct_flows": "--max-direct-flows",
    "node_addresses": "--max-node-addresses",
    "interfaces": "--max-interfaces",
    "positions": "--max-backends",
    "source_ranges": "--max-source-ranges",
    "affinities": "--max-affinities",
    "udp_serving": "--max-backend-slots",
}
"""The option that enlarges each map."""


def directory() -> Path:
    """Find the C sources: they stand in the package, in a checkout by a link."""
    return Path(__file__).parent.parent / "bpf"


@dataclass(frozen=True)
class Source:
    """The C program for given sizes."""

    sizes: Sizes
    root: Path

    @cached_property
    def text(self) -> str:
        """The main file with its own includes spliced in."""
        return "\n".join(_splice(self.root, MAIN))

    @property
    def defines(self) -> dict[str, int]:
        """Macros the text is compiled with."""
        return {**self.sizes.defines(), "LAYOUT_BYTES": LAYOUT_BYTES}

    @cached_property
    def digest(self) -> str:
        """Identify the build: equal digests mean equal programs and maps."""
        content = repr((self.text, sorted(self.defines.items())))
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def load(sizes: Sizes) -> Source:
    """Give the sources of this installation."""
    return Source(sizes, directory())


def _splice(root: Path, name: str) -> list[str]:
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate((root / name).read_text().splitlines(), 1):
        include = _INCLUDE.match(line)
        if include:
            lines += [*_splice(root, include[1]), f'#line {number + 1} "{name}"']
        else:
            lines.append(line)
    return lines
