"""Bytecode that an image carries, so that nodes need not compile. Nothing on a node writes it.

``python -m bpfsvc.datapath.loader.shipped DIRECTORY`` writes it, when an image is built. One file
is enough for all kernels and all settings: the bytes depend on the sources and the kind of
machine only.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.base.trusted_files import distrust, read
from bpfsvc.datapath.loader.bytecode import Bytecode
from bpfsvc.datapath.loader.bytecode_cache import SUFFIX, Unusable
from bpfsvc.datapath.loader.compiler_process import compile_source
from bpfsvc.datapath.loader.source import CSource, load


class ShippedPrograms:
    """A directory of bytecode that came with bpfsvc. It need not exist: then nothing came."""

    def __init__(self, directory: Path, digest: str) -> None:
        """Look in ``directory`` for what was compiled of the sources ``digest``."""
        self.path = directory.resolve() / f"{digest}{SUFFIX}"
        self._digest = digest

    def read(self) -> Bytecode | None:
        """Return the bytecode; None if none came. Raise :class:`Unusable` if it does not fit."""
        directory = self.path.parent
        if not directory.exists():
            return None
        try:
            reason = distrust(directory)
            if reason:
                raise Unusable(f"programs in {directory} are not used: {reason}")
            return Bytecode.decode(read(self.path), self._digest)
        except FileNotFoundError as error:
            raise Unusable(self._others()) from error
        except OSError as error:
            raise Unusable(f"{self.path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise Unusable(f"{self.path} {error}") from error

    def discard(self) -> None:
        """Leave the file: it belongs to the image."""

    def _others(self) -> str:
        """Return which builds are there in place of the wanted one."""
        digests = sorted(file.stem for file in self.path.parent.glob(f"*{SUFFIX}"))
        have = f"builds of the sources {', '.join(digests)}" if digests else "no builds"
        return f"{self.path.parent} has {have}, and these sources are {self._digest}"


def ship(directory: Path, source: CSource | None = None) -> Path:
    """Compile ``source``, or this installation's, into ``directory``; return the file."""
    source = source or load(Sizes())
    compiled = compile_source(source)
    Bytecode.decode(compiled, source.code_digest)
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{source.code_digest}{SUFFIX}"
    file.write_bytes(compiled)
    file.chmod(0o644)
    return file


if __name__ == "__main__":
    print(ship(Path(sys.argv[1])))
