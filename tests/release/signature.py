"""SHA256SUMS, and its signature by a key of OpenSSH, which is on every machine that uses git.

An Ed25519 key signs the same bytes in the same way each time. ``ssh-keygen`` verifies offline.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError

SUMS = "SHA256SUMS"
SIGNATURE = f"{SUMS}.sig"
SIGNERS = Path(__file__).parents[2] / "deploy" / "release" / "allowed_signers"
PURPOSE = "bpfsvc-release"
"""The namespace of the signature: a signature for another purpose is none of a release."""

_KINDS = ("ssh-ed25519", "sk-ssh-ed25519@openssh.com")


class Key:
    """The private key of a releaser, who is one of the signers that users trust."""

    def __init__(self, path: Path, signers: Path) -> None:
        """Refuse a file that is no key, or the key of somebody whom users could not verify."""
        if not path.is_file():
            raise BpfsvcError(
                f"the key of the releaser, {path}, is no file",
                "KEY=FILE names a key of ssh-keygen -t ed25519; KEY=none: no signature",
            )
        public = _public_key(path)
        if not public or public[0] not in _KINDS:
            raise BpfsvcError(
                f"{path} is no key that can sign a release",
                "use an Ed25519 key (ssh-keygen -t ed25519), or the .pub of one in ssh-agent",
            )
        lines = signers.read_text().splitlines() if signers.exists() else []
        entries = [line.split() for line in lines if line.strip() and not line.startswith("#")]
        names = [entry[0] for entry in entries if public in (entry[-3:-1], entry[-2:])]
        if not names:
            raise BpfsvcError(
                f"the key {path} is not in {signers.name}, so users could not verify its signature",
                f"add and commit its line: NAME {' '.join(public)}",
            )
        self.path = path
        self.name = names[0]

    def sign(self, sums: Path) -> None:
        """Write the signature of a file beside it."""
        sums.with_name(SIGNATURE).unlink(missing_ok=True)
        asked: list[str | Path] = [
            "ssh-keygen",
            "-q",
            "-Y",
            "sign",
            "-n",
            PURPOSE,
            "-f",
            self.path,
            sums,
        ]
        subprocess.run(asked, check=True, capture_output=True)


def write_sums(directory: Path) -> Path:
    """Write the hashes of all files of a release, in the form of ``sha256sum``."""
    sums = directory / SUMS
    names = sorted(path.name for path in directory.iterdir() if path.name not in (SUMS, SIGNATURE))
    lines = [f"{sha256(directory / name)}  {name}\n" for name in names]
    sums.write_text("".join(lines))
    return sums


def sha256(path: Path) -> str:
    """Return the hash of a file, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _public_key(path: Path) -> list[str]:
    """Return kind and value of the public half of a key; empty if the file is no key."""
    beside = path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")
    if beside.is_file():
        return beside.read_text().split()[:2]
    asked: list[str | Path] = ["ssh-keygen", "-y", "-P", "", "-f", path]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.split()[:2]
