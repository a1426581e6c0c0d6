"""Credentials that several threads use while they are loaded again."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bpfsvc.kube.client.credentials import Credentials
from bpfsvc.kube.client.login import Login

SECONDS = 10
OLD, NEW = {"Authorization": "old"}, {"Authorization": "new"}


class SlowPlugin:
    """Gives a login that ends in ``valid_seconds``; the next takes until ``may_end`` is set."""

    def __init__(self, valid_seconds: float) -> None:
        self._valid_seconds = valid_seconds
        self.runs = 0
        self.began, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> Login:
        self.runs += 1
        if self.runs == 1:
            return Login(authorization="old", expires=time.time() + self._valid_seconds)
        self.began.set()
        assert self.may_end.wait(2 * SECONDS)
        return Login(authorization="new")


def test_a_plugin_that_takes_long_holds_up_no_request_while_the_last_login_is_valid() -> None:
    plugin = SlowPlugin(valid_seconds=50)
    credentials = Credentials(plugin)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(credentials.current)
        assert plugin.began.wait(SECONDS)
        assert pool.submit(credentials.current).result(SECONDS)[1] == OLD
        assert not first.done()
        plugin.may_end.set()
        assert first.result(SECONDS)[1] == NEW
    assert credentials.current()[1] == NEW
    assert plugin.runs == 2


@pytest.mark.parametrize("is_refused", [False, True])
def test_requests_wait_for_a_plugin_where_the_last_login_is_of_no_use(is_refused: bool) -> None:
    """It has expired, or the server has refused it; the plugin runs once for all."""
    plugin = SlowPlugin(valid_seconds=3600 if is_refused else -1)
    credentials = Credentials(plugin)

    def headers() -> dict[str, str]:
        if is_refused:
            credentials.renew(1)
        return credentials.current()[1]

    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(headers) for _ in range(3)]
        assert plugin.began.wait(SECONDS)
        plugin.may_end.set()
        assert [future.result(SECONDS) for future in asked] == [NEW, NEW, NEW]
    assert plugin.runs == 2
