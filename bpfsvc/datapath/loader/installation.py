"""Bring a build into the kernel: restore the one that is there, or make it and migrate the content.

Equal digests mean equal programs, so a restart of the same version makes nothing. A newer build
is made beside the old one: most maps of unchanged layout are shared by both, the content of others
is copied field by field, and the old programs stay attached until the new ones replace them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError, KernelError
from bpfsvc.datapath.loader.builder import make_build
from bpfsvc.datapath.loader.bytecode_cache import BytecodeCache
from bpfsvc.datapath.loader.connection_copies import (
    are_copied,
    copy_connections,
    remove_ended,
)
from bpfsvc.datapath.loader.map_copies import copy_maps
from bpfsvc.datapath.loader.shipped import ShippedPrograms
from bpfsvc.datapath.loader.source import CSource
from bpfsvc.datapath.maps.pins import NotLoaded, Pinned, PinRoot

_REPLACED = ("ingress", "egress", "ingress_l3", "egress_l3")
"""Programs of the old build that the new one calls, in the order of ``bpf/path/tail_calls.h``."""


class Installation:
    """A build that is loaded. ``fresh``: its programs are not attached yet.

    ``loading``: what still loads them; the maps can be used, and ``AGENT_PROGRAMS``.
    """

    def __init__(
        self,
        root: PinRoot,
        pinned: Pinned,
        previous: Pinned | None,
        fresh: bool,
        copied_at: int = 0,
        loading: Future[None] | None = None,
    ) -> None:
        self.root = root
        self.pinned = pinned
        self.fresh = fresh
        self._previous = previous
        self._copied_at = copied_at
        self._old_serve_alone = True
        self._old_alone_until = 0
        self._loading = loading

    def wait(self) -> None:
        """Return when all programs are loaded; raise :class:`BpfsvcError` if one cannot be."""
        if self._loading:
            self._loading.result()

    def on_failure(self, call: Callable[[Exception], None]) -> None:
        """Have ``call`` called, in any thread, with what :meth:`wait` raises, if it does."""

        def report(loading: Future[None]) -> None:
            error = loading.exception()
            if isinstance(error, Exception):
                call(error)

        if self._loading:
            self._loading.add_done_callback(report)

    def end_loading(self) -> None:
        """Return when nothing is being loaded any more, be it a success or not."""
        if self._loading:
            self._loading.exception()

    @property
    def replaces(self) -> bool:
        """True if programs of another build are attached, and serve until these are."""
        return self._previous is not None

    @property
    def copies_connections(self) -> bool:
        """True if connections are being copied into a map of another layout."""
        return self._previous is not None and are_copied(self._previous, self.pinned)

    @property
    def previous(self) -> Pinned | None:
        """The build that is being replaced; None if there is none."""
        return self._previous

    def catch_up(self) -> None:
        """Copy connections that had packets since they were copied last."""
        if self._previous:
            now = time.monotonic_ns()
            if self._old_serve_alone:
                self._old_alone_until = now
            both = not self._old_serve_alone
            copy_connections(self._previous, self.pinned, self._copied_at, both)
            self._copied_at = now

    def attach_begins(self) -> None:
        """Take note that programs are attached from now on; to be called before."""
        if self.fresh:
            self.root.mark_attached()

    def call_replaced(self) -> None:
        """Have the new programs call the old ones while they take over (``bpf/maps/settings.h``).

        Raises :class:`BpfsvcError` if they cannot, as if the setting of the JIT was another one.
        Then the new programs serve where they are attached.
        """
        assert self._previous
        steps = self.pinned.map("steps")
        try:
            for number, name in self._places_of_replaced():
                steps.update(number, self._previous.program(name).to_bytes(4, sys.byteorder))
        except BpfsvcError:
            self._forget_replaced()  # all four are called, or none
            try:
                self.catch_up()
            finally:
                self._old_serve_alone = False
            raise

    def _places_of_replaced(self) -> list[tuple[bytes, str]]:
        first = self.pinned.map("steps").max_entries - len(_REPLACED)
        return [
            (number.to_bytes(4, sys.byteorder), name)
            for number, name in enumerate(_REPLACED, start=first)
        ]

    def take_over(self) -> None:
        """Make the connections those of the old build, whose programs have served alone until now.

        To be called when the new programs are attached everywhere, before they serve. If they could
        not call the old ones they have served already, and the connections stay.
        """
        if self._previous and self._old_serve_alone:
            remove_ended(self._previous, self.pinned)
            # All of them: a packet changes both entries of a connection, and the time of one.
            self._copied_at = 0
            self.catch_up()
            self._mark_copied()
            self.catch_up()
            self._old_serve_alone = False

    def _mark_copied(self) -> None:
        self.root.mark_copied(time.monotonic_ns())

    def put_in_force(self) -> None:
        """Have the next agent find the new build in force: to be called as soon as it serves."""
        if self.pinned.directory != self.root.current:
            self.root.promote_next()
            self.pinned.directory = self.root.current
            if self._previous:
                self._previous.directory = self.root.old

    def copy_last(self, previous: Pinned) -> None:
        """Copy and remove connections for the last time, and call the old programs no more."""
        self.catch_up()
        remove_ended(previous, self.pinned, self._old_alone_until)
        self._forget_replaced()

    def _forget_replaced(self) -> None:
        for number, _ in self._places_of_replaced():
            self.pinned.map("steps").delete(number)

    def complete(self) -> None:
        """Close the old build and replace it by the new one, which is attached everywhere by now.

        Connections that the old programs noted while both ran are copied last, and those that they
        have removed are removed.
        """
        if self.fresh:
            if self._previous:
                self.copy_last(self._previous)
                self._previous.close()
                self._previous = None
            self.put_in_force()
            self.fresh = False
        else:
            self._forget_replaced()  # an earlier agent may have ended before it did
        self.root.discard_others()


def install(
    root: PinRoot,
    source: CSource,
    log: Callable[[str], None],
    cache: Path | None = None,
    shipped: Path | None = None,
) -> Installation:
    """Load the build of ``source`` at ``root``, or restore it if it is there already.

    ``cache``: a directory for programs that are compiled here; ``shipped``: one of those that came
    with bpfsvc.
    """
    installation = begin_install(root, source, log, cache, shipped)
    installation.wait()
    return installation


def begin_install(
    root: PinRoot,
    source: CSource,
    log: Callable[[str], None],
    cache: Path | None = None,
    shipped: Path | None = None,
    unwanted: Callable[[], bool] = lambda: False,
) -> Installation:
    """Do the same, but where there was no build before, return as soon as the maps can be used.

    Most of the time is the verifier's, and Services can be written meanwhile. Where a build is
    replaced that is in force, nothing is written before it is certain that the new one loads.
    ``unwanted()``: see :func:`compile_source`.
    """
    root.create()
    if _serves(root.next):
        root.promote_next()  # an earlier agent may have ended before it did
    root.clear_next()
    try:
        previous: Pinned | None = Pinned(root.current)
    except NotLoaded:
        previous = None
    except KernelError as error:
        # Written by a version that this one cannot read: traffic goes on until replaced.
        log(f"starting over: {error}")
        previous = None
    if previous:
        _finish_takeover(root, previous)
    if previous and previous.layout.digest == source.digest:
        return Installation(root, previous, None, fresh=False)
    digest = source.code_digest
    cached = BytecodeCache(cache, digest, log) if cache else None
    carried = ShippedPrograms(shipped, digest) if shipped else None
    usable = threading.Event()
    loading = _in_thread(
        make_build, root, source, log, previous, cached, carried, usable.set, unwanted
    )
    loading.add_done_callback(lambda _: usable.set())
    usable.wait()
    if previous or loading.done():
        loading.result()
    pinned = Pinned(root.next)
    now = time.monotonic_ns()
    if previous:
        copied = migrate(previous, pinned)
        log(f"replacing an older build; {copied} entries copied into changed maps")
    return Installation(root, pinned, previous, fresh=True, copied_at=now, loading=loading)


def _serves(directory: Path) -> bool:
    """True if the build of a directory has taken over from another one, by its own settings."""
    try:
        with closing(Pinned(directory)) as build:
            takeover = build.layout.maps["settings"].value.pick("takeover")
            attached = build.layout.constant("TAKEOVER_ATTACHED")
            settings = build.map("settings").lookup(bytes(4))
            return settings is not None and takeover.unpack(settings) == (attached,)
    except (KernelError, NotLoaded):
        return False  # there is no build, or an older one without this setting


def _finish_takeover(root: PinRoot, current: Pinned) -> None:
    """Copy what an earlier agent has not copied before it ended, of the build before.

    The programs of the build in force call that one as long as they are not told otherwise.
    """
    copied_at = root.copied_at()
    if copied_at is None or not root.old.exists():
        return
    try:
        with closing(Pinned(root.old)) as old:
            copy_connections(old, current, copied_at, both=True)
            remove_ended(old, current, copied_at)
    except (KernelError, NotLoaded):
        return  # parts of it are not there any more


def _in_thread(function: Callable[..., None], *args: object) -> Future[None]:
    """Call a function in a thread of its own, which ends with it."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function, *args)
    finally:
        pool.shutdown(wait=False)


def migrate(old: Pinned, new: Pinned) -> int:
    """Copy the content of every map that is not shared; return the number of entries."""
    return copy_connections(old, new) + copy_maps(old, new)
