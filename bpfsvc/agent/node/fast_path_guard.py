"""Which level of the fast path may be used now, as some rules have to see forwarded packets.

A thread of its own finds out: a node with rules for thousands of Services needs seconds to print
the rules, and no change of an endpoint must wait for that.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from typing import Protocol

from bpfsvc.base.fast_path import STACK, FastPathUse
from bpfsvc.datapath.netlink.nft_changes import NftChanges

LOOK_SECONDS = 5.0
"""How often to look for changes without an announcement: iptables-legacy, IPsec, devices."""

_SETTLE_SECONDS = 0.2
"""Rules change several at a time: wait for the others."""

_SHARE = 20
"""A long look is followed by a pause of so many times its duration."""

_log = logging.getLogger("bpfsvc")


class Look(Protocol):
    """Finds the best level. ``rules_changed``: False if no rule of nftables has changed since."""

    def __call__(self, now: FastPathUse, *, rules_changed: bool) -> FastPathUse:
        """Return the best level; ``now``: what the node has."""


class FastPathGuard:
    """Looks for the best level: when netfilter's rules change, and now and then."""

    def __init__(self, look: Look, look_seconds: float = LOOK_SECONDS) -> None:
        self._look = look
        self._look_seconds = look_seconds
        self._use = look(FastPathUse(STACK), rules_changed=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fast path", daemon=True)

    @property
    def use(self) -> FastPathUse:
        """The level that may be used now."""
        if self._thread.ident and not self._thread.is_alive() and not self._stop.is_set():
            ended = "the thread that checks the rules has ended (restart the agent)"
            return FastPathUse(STACK, ended)
        return self._use

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; do not wait for a look that has begun."""
        self._stop.set()

    def _run(self) -> None:
        with ExitStack() as ending:
            if changes := _changes():
                ending.callback(changes.close)
            self._look_on(changes)

    def _look_on(self, changes: NftChanges | None) -> None:
        changed = True  # perhaps, between the first look and the subscription
        pause = 0.0
        while not self._stop.is_set():
            if changes is None:
                self._stop.wait(pause)
            elif changes.wait(pause):
                self._stop.wait(_SETTLE_SECONDS)
                changed = True
            if self._stop.is_set():
                break
            began = time.monotonic()
            self._use = self._look(self._use, rules_changed=changed)
            changed = changes is None
            pause = max(self._look_seconds, _SHARE * (time.monotonic() - began))


def _changes() -> NftChanges | None:
    try:
        return NftChanges()
    except OSError as error:
        _log.info("cannot subscribe to nftables events; polling instead: %s", error)
        return None
