"""The lab's API server, held against a real etcd and kube-apiserver: the same to every client.

Run by ``make api-test KUBERNETES=DIR``, where DIR has Kubernetes' programs. See ``pair`` for what
is compared. Left out on purpose, because a client cannot rely on it: how many bookmarks there are
beside the one that ends initial events, and the words about the syntax of a query.
"""

from __future__ import annotations

import random

import pytest

from bpfsvc.devtools.lab import objects
from bpfsvc.kube.client.connection import ACCEPTED
from tests.apiserver.pair import Pair, Query, Seen, assert_same
from tests.apiserver.pair_fixtures import FOREIGN
from tests.apiserver.test_events import PLACE, event
from tests.kube.requests import SERVICES, SLICES

pytestmark = pytest.mark.kubernetes

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
CIDRS = "/apis/networking.k8s.io/v1/servicecidrs"
AGENT = {"labelSelector": f"!{FOREIGN}", "fieldSelector": "spec.clusterIP!=None"}
BEFORE = "before"
"""In a query: the version before the last change that ``world`` makes."""


def resolved(pair: Pair, query: Query) -> Query:
    """Put the version in the place of its name."""
    return {name: pair.before if value == BEFORE else value for name, value in query.items()}


LISTS: list[Query] = [
    {},
    {"resourceVersion": 0},
    {"limit": 2},
    {"limit": -1},
    {"limit": 2, "resourceVersion": 0},
    {"limit": 2, "resourceVersion": BEFORE},
    {"limit": 1, "continue": ""},
    {"limit": 1, "labelSelector": "tier"},
    {"resourceVersion": BEFORE},
    {"resourceVersion": BEFORE, "resourceVersionMatch": "Exact"},
    {"resourceVersion": BEFORE, "resourceVersionMatch": "Exact", "limit": 1},
    {"resourceVersion": BEFORE, "resourceVersionMatch": "NotOlderThan"},
    {"resourceVersion": BEFORE, "resourceVersionMatch": "NotOlderThan", "limit": 1},
    {"resourceVersion": 0, "resourceVersionMatch": "NotOlderThan"},
    {"resourceVersion": 0, "resourceVersionMatch": "NotOlderThan", "limit": 1},
    AGENT,
    {**AGENT, "limit": 2},
    {"labelSelector": "tier in (web, db),tier!=db"},
    {"labelSelector": "tier notin (web)"},
    {"labelSelector": "tier==db"},
    {"fieldSelector": "metadata.name=a"},
    {"fieldSelector": "spec.type=ClusterIP,metadata.namespace=default"},
    {"fieldSelector": "spec.clusterIP==None"},
]
WRONG_LISTS: list[Query] = [
    {"resourceVersion": 10**9},
    {"resourceVersion": 10**9, "limit": 3},
    {"resourceVersion": 10**9, "resourceVersionMatch": "NotOlderThan"},
    {"resourceVersion": 10**9, "resourceVersionMatch": "NotOlderThan", "limit": 1},
    {"resourceVersion": "now"},
    {"limit": "many"},
    {"timeoutSeconds": "x"},
    {"continue": "x"},
    {"continue": "x", "resourceVersion": 5},
    {"resourceVersionMatch": "Exact"},
    {"resourceVersionMatch": "Exact", "resourceVersion": 0},
    {"resourceVersionMatch": "Newest", "resourceVersion": 1},
    {"resourceVersionMatch": "Exact", "resourceVersion": 1, "continue": "x"},
    {"sendInitialEvents": "true"},
    {"fieldSelector": "spec.ports=80"},
    {"fieldSelector": "metadata.name"},
    {"labelSelector": "a b"},
    {"labelSelector": "a in b"},
    {"labelSelector": "=x"},
    {"labelSelector": "a=b=c"},
    {"labelSelector": "a!"},
]


@pytest.mark.parametrize("query", LISTS, ids=str)
def test_a_list_is_the_same(pair: Pair, query: Query) -> None:
    """Objects, their order, the version of the list, and the token for the rest."""
    assert assert_same(pair.seen(SERVICES, **resolved(pair, query))).status == 200


@pytest.mark.parametrize("query", WRONG_LISTS, ids=str)
def test_a_wrong_list_is_refused_in_the_same_way(pair: Pair, query: Query) -> None:
    """The code, the reason, the causes, and Retry-After (which old servers leave out)."""
    is_exact = {"limit", "resourceVersion"} <= {*query} and "resourceVersionMatch" not in query
    if pair.lab.faults.watch_list == "recorded" and is_exact:
        pytest.skip("an exact list out of etcd, whose refusal has no Retry-After")
    assert assert_same(pair.seen(SERVICES, **query)).status >= 400


@pytest.mark.parametrize("url_path", [SERVICES, SLICES, NODES, PODS, CIDRS])
def test_other_lists_are_the_same(pair: Pair, url_path: str) -> None:
    """With the selectors of the agent, which differ between resources."""
    queries: list[Query] = [{}, {"limit": 1}, {"fieldSelector": "metadata.name=n1"}]
    for query in queries:
        assert_same(pair.seen(url_path, **query))


@pytest.mark.parametrize(
    ("url_path", "field"),
    [
        *((SERVICES, "spec.clusterIP"), (PODS, "spec.nodeName"), (NODES, "spec.unschedulable")),
        *((SLICES, "spec.nodeName"), (CIDRS, "metadata.namespace"), (NODES, "spec.nodeName")),
    ],
)
def test_the_same_fields_can_be_selected(pair: Pair, url_path: str, field: str) -> None:
    """Each resource knows its own fields."""
    assert_same(pair.seen(url_path, fieldSelector=f"{field}=x"))


def test_pages_are_the_same_while_objects_change(pair: Pair) -> None:
    """All pages show the objects of the first one's version."""
    pages = pair.pages(SERVICES, 2)
    assert_same(pages.next())
    extra = [objects.service(name, ()) for name in ("bb", "ddd")]
    for raw in extra:
        pair.put(raw)
    count = 1
    while not pages.is_last:
        assert_same(pages.next())
        count += 1
    assert count > 2
    for raw in extra:
        pair.delete(raw)


WATCHES: list[Query] = [
    {"resourceVersion": 0},
    {"resourceVersion": BEFORE},
    {"resourceVersion": BEFORE, "allowWatchBookmarks": "true"},
    {"resourceVersion": 0, "allowWatchBookmarks": "true"},
    {"resourceVersion": 10**9},
    {"resourceVersion": BEFORE, **AGENT},
    {"resourceVersion": 0, **AGENT},
    {"resourceVersion": "x"},
    {"resourceVersion": 0, "fieldSelector": "a=b"},
    {"sendInitialEvents": "true"},
    {"sendInitialEvents": "false"},
    {"resourceVersionMatch": "NotOlderThan"},
    {"sendInitialEvents": "true", "resourceVersionMatch": "Exact", "resourceVersion": 1},
    {"timeoutSeconds": "x"},
    {},
    {"allowWatchBookmarks": "true"},
]
WATCH_LISTS: list[Query] = [
    {
        "sendInitialEvents": begins,
        "resourceVersionMatch": "NotOlderThan",
        **({} if version is None else {"resourceVersion": version}),
        **({"allowWatchBookmarks": "true"} if bookmarks else {}),
        **selected,
    }
    for begins in ("true", "false")
    for version in (None, 0, BEFORE, 10**9)
    for bookmarks in (True, False)
    for selected in ({}, AGENT)
]


def test_a_watch_is_the_same_to_its_end(pair: Pair) -> None:
    """From a version or with initial events; with the answer and the error inside the stream."""
    queries = [query for query in WATCHES + WATCH_LISTS if is_certain(pair, query)]
    assert_all_same(pair, [(SERVICES, query) for query in queries])


def is_certain(pair: Pair, query: Query) -> bool:
    """False for what an old etcd can answer only after the next change, or with an error."""
    starts_now = "resourceVersion" not in query and query.get("sendInitialEvents") != "false"
    return pair.lab.faults.watch_list == "served" or not starts_now


def assert_all_same(pair: Pair, watches: list[tuple[str, Query]], seconds: int = 4) -> list[Seen]:
    """Compare watches that are open at the same time; return those of the real server.

    They last longer than the three seconds for which a real server waits for a later version.
    """
    asked = [
        (url_path, {"watch": 1, "timeoutSeconds": seconds} | resolved(pair, query))
        for url_path, query in watches
    ]
    answers = pair.many(asked)
    return [assert_same(two, watch) for watch, two in zip(asked, answers, strict=True)]


def test_bookmarks_before_the_end_have_the_same_form(pair: Pair) -> None:
    """Whether a real server sends any is not certain: none for a resource that never changed."""
    changed = (objects.service("marked", ()), objects.node("marked", ("192.0.2.9",)))
    since = pair.version
    for raw in changed:
        pair.put(raw)
    for url_path in (SERVICES, SLICES, NODES):
        real, lab = pair.bookmarks(url_path, resourceVersion=since, timeoutSeconds=5)
        assert lab
        assert [raw for raw in real if raw != lab[-1]] == []
    for raw in changed:
        pair.delete(raw)


def test_a_server_without_the_parameter_drop_ignores_it(pair: Pair) -> None:
    """Kubernetes 1.38 leaves out ``managedFields``; a server before that is asked as well."""
    for url_path in (SERVICES, SLICES, NODES, f"{SERVICES}/x", "/apis/foo", "/readyz"):
        answer = assert_same(pair.seen(url_path, accept=ACCEPTED))
        assert answer == pair.seen(url_path)[0]
    watched = pair.seen(SERVICES, accept=ACCEPTED, watch=1, resourceVersion=0, timeoutSeconds=1)
    assert "managedFields" in str(assert_same(watched).body)


def test_a_watch_from_a_later_version_than_the_servers_gets_no_bookmark(pair: Pair) -> None:
    """A server whose etcd was restored from a backup is silent to clients that know more."""
    assert pair.bookmarks(SERVICES, resourceVersion=10**9, timeoutSeconds=5) == ([], [])


@pytest.mark.parametrize(
    "url_path",
    [
        *("/api/v1/namespaces/default/services/a", "/api/v1/namespaces/default/services/x"),
        *("/api/v1/namespaces/default/services", "/api/v1/namespaces/none/services"),
        *("/api/v1/nodes/x", "/apis/networking.k8s.io/v1/servicecidrs/x"),
        *("/api/v1/foo", "/api/v2/services", "/apis/foo", "/apis/foo/v1/bar", "/nothing"),
        *("/apis/networking.k8s.io/v1/foo", "/apis/networking.k8s.io/v2"),
        *("/apis/networking.k8s.io/v1beta1/servicecidrs", "/apis/discovery.k8s.io/v1beta1"),
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/x",
        *("/readyz", "/livez", "/healthz"),
    ],
)
def test_a_path_is_answered_in_the_same_way(pair: Pair, url_path: str) -> None:
    """Objects, unknown ones, and the two kinds of 404."""
    assert_same(pair.seen(url_path))


def test_who_may_not_ask_gets_the_same_answer(pair: Pair) -> None:
    """A wrong token, and a user without a role."""
    pair.lab.faults.tokens = frozenset({"admin", "nobody"})
    assert assert_same(pair.seen(SERVICES, token="wrong")).status == 401
    pair.lab.faults.forbidden = frozenset({"services", "servicecidrs", "events"})
    for url_path in (SERVICES, CIDRS, f"{CIDRS}/x", "/api/v1/namespaces/default/services/a"):
        assert assert_same(pair.seen(url_path, token="nobody")).status == 403
        assert assert_same(pair.seen(url_path, token="nobody", watch=1)).status == 403
    assert assert_same(pair.send("POST", PLACE, event(), token="nobody")).status == 403
    pair.lab.faults.forbidden = frozenset()
    pair.lab.faults.tokens = None


def test_a_method_that_is_not_there_is_refused_in_the_same_way(pair: Pair) -> None:
    """For a collection."""
    for method in ("POST", "PUT"):
        assert assert_same(pair.send(method, SERVICES, {})).status == 405


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_are_seen_in_the_same_way(pair: Pair, seed: int) -> None:
    """Watches and exact lists from every version between, with the agent's selectors and others."""
    chance = random.Random(seed)
    began = len(pair.versions())
    for _ in range(40):
        change(pair, chance)
    versions = pair.versions()[began - 1 :]
    selectors: list[Query] = [
        {},
        AGENT,
        {"labelSelector": "tier"},
        {"fieldSelector": "metadata.name=r1"},
    ]
    watches: list[tuple[str, Query]] = [
        (url_path, {"resourceVersion": chance.choice(versions)} | selected)
        for url_path in (SERVICES, SLICES, "/api/v1/namespaces/default/services")
        for selected in selectors
        if url_path != SLICES or selected is not AGENT
    ]
    assert_all_same(pair, watches)
    for url_path, query in watches:
        if "/namespaces/" in url_path and "fieldSelector" in query:
            continue  # one object by its name: etcd gives the present one, whatever the version
        for match in ("Exact", "NotOlderThan"):
            assert_same(pair.seen(url_path, resourceVersionMatch=match, **query), query)
        assert_same(pair.seen(url_path, limit=3, **query), query)


def change(pair: Pair, chance: random.Random) -> None:
    """Create, change or delete one of a few objects; some have a finalizer."""
    name = f"r{chance.randrange(4)}"
    raw = chance.choice(
        [objects.service(name, ()), objects.endpoint_slice(name, [], name=f"{name}-1")]
    )
    kind = raw["kind"]
    record = pair.lab.store.get(kind, "default", raw["metadata"]["name"])
    if record is None:
        if chance.random() < 0.3:
            raw["metadata"]["finalizers"] = ["example.com/wait"]
        pair.put(raw)
    elif "deletionTimestamp" in record.raw()["metadata"]:
        pair.merge(raw, {"metadata": {"finalizers": None}})
    elif chance.random() < 0.3:
        pair.delete(raw)
    else:
        labels = {"tier": chance.choice(["web", "db", None]), FOREIGN: chance.choice(["x", None])}
        marked = {"example.com/turn": str(chance.random())}
        pair.merge(raw, {"metadata": {"labels": labels, "annotations": marked}})


def test_forgotten_history_is_refused_in_the_same_way(pair: Pair) -> None:
    """410 for watches, pages and exact lists; the token of the answer goes on."""
    pages = pair.pages(SERVICES, 2)
    assert_same(pages.next())
    since = pair.version
    pair.put(objects.service("later", ()))
    pair.forget()
    gone = assert_same(pages.next())
    assert gone.status == 410
    assert assert_same(pages.next()).status == 200
    for query in ({"resourceVersionMatch": "Exact"}, {"limit": 2}, {}):
        assert_same(pair.seen(SERVICES, resourceVersion=since, **query))
    watches: list[tuple[str, Query]]
    watches = [(url_path, {"resourceVersion": since}) for url_path in (SERVICES, NODES)]
    watches += [(SERVICES, {"resourceVersion": since, **more}) for more in LATER]
    answers = assert_all_same(pair, watches)
    assert [answer.body[0]["object"]["code"] for answer in answers[:2]] == [410, 410]


LATER: list[Query] = [
    {"allowWatchBookmarks": "true"},
    {
        "allowWatchBookmarks": "true",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
    },
]
