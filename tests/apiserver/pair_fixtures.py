"""The lab's API server and the real one beside it, with the same objects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfsvc.devtools.lab import objects
from bpfsvc.devtools.lab.apiserver import ApiServer
from tests.apiserver.fixtures import Certificates
from tests.apiserver.kubernetes import KubeApiServer
from tests.apiserver.pair import Pair

FOREIGN = "service.kubernetes.io/service-proxy-name"


@pytest.fixture(scope="package", params=["served", "recorded"])
def servers(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    certificates: Certificates,
) -> Iterator[tuple[KubeApiServer, str]]:
    """A real server with an etcd of today, and with one that is too old for WatchList."""
    real = KubeApiServer(
        tmp_path_factory.mktemp("kubernetes"),
        certificates.server,
        certificates.server_key,
        says_newer=request.param == "served",
    )
    try:
        real.start()
        yield real, request.param
    finally:
        real.stop()


@pytest.fixture(scope="package")
def pair(servers: tuple[KubeApiServer, str]) -> Iterator[Pair]:
    """Both servers, with some Services, slices, nodes and pods."""
    real, watch_list = servers
    with ApiServer(watch_list=watch_list) as lab:
        lab.start()
        both = Pair(real, lab)
        try:
            world(both)
            yield both
        finally:
            both.close()


def world(pair: Pair) -> None:
    for name in ("n1", "n2"):
        pair.put(objects.node(name, ("192.0.2.1",)))
    for name in ("a", "b", "c"):
        pair.put(objects.service(name, ()))
        pair.put(objects.endpoint_slice(name, [objects.endpoint("10.0.0.1")], name=f"{name}-1"))
    pair.put(objects.service("none", (), clusterIP="None"))
    pair.put(objects.service("foreign", (), labels={FOREIGN: "x", "tier": "db"}))
    pair.put(objects.service("labelled", (), labels={"tier": "web"}))
    pair.before = pair.version
    pair.put(objects.service("d", ()))
