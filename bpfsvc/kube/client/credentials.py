"""The login of the present moment, and the connections that were made with it.

A login plugin may take a minute, and all requests need the login. So a login is loaded again before
it expires, by a single thread; the others go on with the last login while it is valid.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from urllib3 import PoolManager
from urllib3.exceptions import HTTPError, InsecureRequestWarning

from bpfsvc.kube.client.login import Login, LoginError, read_token
from bpfsvc.kube.client.transport import open_pools
from bpfsvc.kube.errors import Unreachable, one_line

_log = logging.getLogger("bpfsvc")

_INSECURE = (
    "the certificate of the API server %s is not verified (insecure-skip-tls-verify): another "
    "server can answer in its place and read the credentials; put its CA into the kubeconfig"
)

_TOKEN_SECONDS = 60.0
"""How old a token from a file may be."""

_BEFORE_EXPIRY = 60.0
"""Seconds before the end of a login when the login is loaded again."""

UNUSABLE = (LoginError, HTTPError, OSError, ValueError)
"""What loading a login raises."""


class Credentials:
    """A login that is loaded again when it is old or no longer accepted; for any thread.

    Raises an error of ``UNUSABLE`` if the login cannot be loaded at first.
    """

    def __init__(self, load: Callable[[], Login]) -> None:
        self._load = load
        self._loading = threading.Lock()
        """Held by the thread that loads the login, before ``_lock``."""
        self._lock = threading.Lock()
        self._number = 0
        """Counts how often the login was loaded."""
        self._is_insecure = False
        self._login: Login
        self._pools: PoolManager
        self._reload()
        self.server: str = self._login.server
        """Its URL, without a slash at the end."""

    def current(self) -> tuple[PoolManager, dict[str, str], int]:
        """Return the connections, the headers of the credentials, a number for :meth:`renew`.

        Raises :class:`Unreachable` if the credentials cannot be read just now.
        """
        with _as_unreachable():
            if time.time() >= self._load_again_at:
                self._load_again()
            with self._lock:
                if self._is_token_old():
                    self._read_token()
                return self._pools, self._headers, self._number

    def login(self) -> tuple[Login, dict[str, str]]:
        """Return the present login, and the headers of the credentials; raises as above."""
        _, headers, _ = self.current()
        with self._lock:
            return self._login, headers

    def renew(self, used: int) -> None:
        """Load the login again, unless another thread has done so since ``used``."""
        with self._loading, _as_unreachable():
            if used == self._number:
                self._reload()

    def expire(self, used: int) -> None:
        """Load the login before the next request: a certificate may have been replaced."""
        with self._lock:
            if used == self._number:
                self._load_again_at = 0.0

    def _load_again(self) -> None:
        """Load the login, or leave that to the thread that does so, if this one is still valid."""
        is_valid = time.time() < self._login.expires
        if not self._loading.acquire(blocking=not is_valid):
            return
        try:
            if time.time() >= self._load_again_at:
                self._reload()
        finally:
            self._loading.release()

    def _reload(self) -> None:
        """Load the login; by the thread that holds ``_loading``."""
        login = self._load()
        with self._lock:
            self._take(login)

    def _take(self, login: Login) -> None:
        if not self._number or _endpoint(login) != _endpoint(self._login):
            self._pools = open_pools(login)
            self._warn_if_insecure(login)
        self._login = login
        self._headers = {"Authorization": login.authorization} if login.authorization else {}
        if login.token_file:
            self._read_token()
        self._number += 1
        self._load_again_at = login.expires - _BEFORE_EXPIRY

    def _is_token_old(self) -> bool:
        is_file = self._login.token_file is not None
        return is_file and time.monotonic() >= self._token_read_at + _TOKEN_SECONDS

    def _read_token(self) -> None:
        assert self._login.token_file
        self._headers = {"Authorization": f"Bearer {read_token(self._login.token_file)}"}
        self._token_read_at = time.monotonic()

    def _warn_if_insecure(self, login: Login) -> None:
        is_insecure = login.server.startswith("https:") and not login.tls.verify
        if is_insecure and not self._is_insecure:
            _log.warning(_INSECURE, login.server)
            # urllib3's own warning would come at every request.
            warnings.simplefilter("ignore", InsecureRequestWarning)
        self._is_insecure = is_insecure


def _endpoint(login: Login) -> tuple[object, ...]:
    """Return what connections are made with."""
    return login.server, login.proxy, login.tls


@contextmanager
def _as_unreachable() -> Iterator[None]:
    try:
        yield
    except UNUSABLE as error:
        reason = one_line(str(error))
        raise Unreachable(f"the credentials cannot be read: {reason}") from error
