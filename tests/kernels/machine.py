"""An emulated machine that runs ``guest.sh`` on a kernel of our choice, with this machine's files.

It needs only qemu and the files that ``fetch.sh`` has unpacked. A machine of another architecture
has the files that ``root.sh`` has made in place of this machine's, and the checkout. The processor
is emulated, because few test machines may virtualise, so everything takes some fifteen times as
long. The guest reads the files of the host and cannot write them; results are in a directory that
both share. It has no network.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base import syscalls

CHECKOUT = Path(__file__).parents[2]


class Emulated(NamedTuple):
    """An architecture: the program of qemu that emulates it, its options, and the console."""

    program: str
    options: tuple[str, ...]
    console: str


ARCHITECTURES = {
    "amd64": Emulated("qemu-system-x86_64", ("-machine", "q35", "-cpu", "max"), "ttyS0"),
    "arm64": Emulated(
        "qemu-system-aarch64", ("-machine", "virt", "-cpu", "max,pauth-impdef=on"), "ttyAMA0"
    ),
}
"""By Debian's names."""
THIS_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, "")

_UP = 180.0  # seconds until the first suite starts; 10 are usual
_END = 15.0  # for qemu to end
_BOOTS = 3
_LINES = 60
_PAUSE = 0.2


class MachineFailed(Exception):
    """The machine did not start, stopped, or did not end; the message has its last lines."""


class Machine:
    """A running machine. ``results``: the directory that the guest writes to."""

    def __init__(
        self, unpacked: Path, results: Path, architecture: str, suites: Sequence[str]
    ) -> None:
        self.results = results
        with (results / "console.log").open("wb") as console:
            self.process = subprocess.Popen(
                _command(unpacked, results, architecture, suites),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                preexec_fn=lambda: syscalls.die_with_parent(signal.SIGKILL),
            )
        self._on = time.monotonic()

    def file(self, name: str, seconds: float) -> str:
        """Wait until the guest has written a file of the results; return its text, stripped.

        ``MachineFailed`` if it is not there so many seconds after the start of the machine,
        or if the machine ends before.
        """
        file = self.results / name
        while True:
            ended = self.process.poll() is not None
            if file.exists() and (text := file.read_text()).endswith("\n"):
                return text.strip()
            if ended:
                raise MachineFailed(f"the machine ended before {name}:\n{self.tail('console')}")
            if time.monotonic() > self._on + seconds:
                logs = "\n".join(self.tail(log.stem) for log in self.results.glob("*.log"))
                raise MachineFailed(f"no {name} within {seconds:.0f} s:\n{logs}")
            time.sleep(_PAUSE)

    def tail(self, log: str) -> str:
        """Return the last lines of a log, ``console`` among them."""
        file = self.results / f"{log}.log"
        lines = file.read_text(errors="replace").splitlines() if file.exists() else ["(none)"]
        return "\n".join([f"--- the end of {file}", *lines[-_LINES:]])


@contextmanager
def switched_on(
    results: Path, unpacked: Path, architecture: str, suites: Sequence[str]
) -> Iterator[Machine]:
    """Boot the unpacked kernel and run suites of ``guest.sh``; end the machine on exit."""
    if not (unpacked / "version").exists():
        raise MachineFailed(f"there is no kernel in {unpacked}: run 'make kernels'")
    machine = _booted(unpacked, results, architecture, suites)
    try:
        yield machine
    finally:
        _switch_off(machine)


def _booted(unpacked: Path, results: Path, architecture: str, suites: Sequence[str]) -> Machine:
    """Return a machine that runs ``guest.sh``.

    Newer kernels patch their code while another processor runs it. Now and then qemu's emulation
    takes such a place for a breakpoint, and the kernel stops before it starts any process of ours.
    """
    for boot in range(1, _BOOTS + 1):
        machine = Machine(unpacked, results, architecture, suites)
        try:
            machine.file("kernel", _UP)
        except BaseException as error:
            _switch_off(machine)
            if not isinstance(error, MachineFailed) or boot == _BOOTS:
                raise
            print(f"boot {boot} of {_BOOTS} failed: {error}")
        else:
            break
    return machine


def _switch_off(machine: Machine) -> None:
    machine.process.terminate()
    try:
        machine.process.wait(_END)
    except subprocess.TimeoutExpired:
        machine.process.kill()
        machine.process.wait()


def _command(unpacked: Path, results: Path, architecture: str, suites: Sequence[str]) -> list[str]:
    emulated = ARCHITECTURES[architecture]
    if architecture == THIS_ARCHITECTURE:
        python = sys.executable
        shared = _shared("host", Path("/"), ",readonly=on")
    else:
        python = "/usr/bin/python3"
        root = CHECKOUT / "build" / "kernels" / architecture / "root"
        shared = [
            *_shared("host", root, ",readonly=on"),
            *_shared("checkout", CHECKOUT, ",readonly=on"),
        ]
    options = f"checkout={CHECKOUT} kernel={unpacked} python={python} suites={','.join(suites)}"
    return [
        emulated.program,
        *(*emulated.options, "-accel", "tcg,thread=multi"),
        *("-smp", "2", "-m", "2G", "-nodefaults", "-no-user-config", "-display", "none"),
        *("-no-reboot", "-serial", "stdio"),
        *("-kernel", str(unpacked / "vmlinuz"), "-initrd", str(unpacked / "initramfs")),
        *("-append", f"console={emulated.console} quiet panic=-1 rdinit=/init {options}"),
        *shared,
        *_shared("results", results),
    ]


def _shared(tag: str, directory: Path, more: str = "") -> list[str]:
    export = f"local,id={tag},path={directory},security_model=none,multidevs=remap{more}"
    return ["-fsdev", export, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
