"""Links from a program to an interface (tcx, XDP), each pinned under the interface's index.

A link ends with its interface or with its last reference, so it is pinned. It lets a newer program
replace the one that is attached in one step, and other programs cannot remove it by accident.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError, KernelError
from bpfsvc.datapath import syscall
from bpfsvc.datapath.maps.pins import PinRoot, release


@contextmanager
def opened(pin: Path) -> Iterator[int]:
    """Open a pinned link; ``FileNotFoundError`` if there is none."""
    link = syscall.get(pin)
    try:
        yield link
    finally:
        os.close(link)


def programs(ifindex: int, attach_type: int, none: Collection[int]) -> tuple[int, ...]:
    """Return the ids of all programs at a hook of an interface, in the order in which they run.

    ``none``: the errors of the kernel that mean that there is none.
    """
    try:
        return syscall.programs_at(ifindex, attach_type)
    except OSError as error:
        if error.errno in none:
            return ()
        raise


def attach(
    pin: Path,
    ifindex: int,
    program: int,
    attach_type: int,
    flags: int,
    explain: Callable[[OSError], BpfsvcError],
) -> None:
    """Attach a program, or replace the one that is attached by ``pin``, atomically.

    If the kernel refuses a new link, raises what ``explain`` returns for its error.
    """
    try:
        pin.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise _unpinned(pin, error) from error
    if pin.exists() and _replace(pin, ifindex, program):
        return
    try:
        link = syscall.link_create(program, ifindex, attach_type, flags)
    except OSError as error:
        raise explain(error) from error
    try:
        syscall.keep_link(link, pin)
    except OSError as error:
        raise _unpinned(pin, error) from error


def _unpinned(pin: Path, error: OSError) -> KernelError:
    return KernelError(f"nothing can be pinned at {pin}: {error.strerror}")


def _replace(pin: Path, ifindex: int, program: int) -> bool:
    """Replace the program of a link; False if the link has ended with its interface.

    A program that cannot be replaced is detached, and False returned: it would send packets by the
    maps of a former build, which are no longer updated.
    """
    with opened(pin) as link:
        try:
            if syscall.link_ifindex(link) != ifindex:
                return False
            if syscall.link_program(link) != syscall.program_id(program):
                syscall.link_update(link, program)
        except OSError as error:
            if error.errno != errno.ENOLINK:
                release(pin)
            return False
    return True


def program_id(pin: Path, ifindex: int) -> int:
    """Return the id of the program that is attached by a pin; 0 if there is none."""
    try:
        with opened(pin) as link:
            return syscall.link_program(link) if syscall.link_ifindex(link) == ifindex else 0
    except FileNotFoundError:
        return 0


def detach(pin: Path) -> bool:
    """Detach the program that is attached by a pin; True if there was one."""
    if not pin.exists():
        return False
    release(pin)
    return True


def pins(root: PinRoot, prefix: str) -> Iterator[tuple[int, Path]]:
    """Yield the indexes of interfaces and their pins; names are ``prefix``, ``-`` and the index."""
    for pin in sorted(root.links.glob(f"{prefix}-*")) if root.links.is_dir() else ():
        yield int(pin.name.rpartition("-")[2]), pin


def forget_missing(root: PinRoot, prefix: str, present: set[int]) -> None:
    """Remove the pins of interfaces that no longer exist."""
    for ifindex, pin in pins(root, prefix):
        if ifindex not in present:
            release(pin)
