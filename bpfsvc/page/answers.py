"""What the page asks for, as JSON: the node's health, Services, history, events, explanations."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from bpfsvc.base.errors import BpfsvcError, UsageError
from bpfsvc.base.texts import change_text, count_text
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.explain.agent_answers import AgentAnswers, NoAnswer
from bpfsvc.explain.answer import Answer
from bpfsvc.explain.live_kernel import live_kernel
from bpfsvc.explain.live_traffic import LiveTraffic
from bpfsvc.explain.names import question_with_names
from bpfsvc.explain.question import ORIGINS, Question
from bpfsvc.inspect.events.agent_stream import open_stream_with_drops
from bpfsvc.inspect.events.filters import FILTERS, event_filter
from bpfsvc.inspect.node_health import NodeFacts, lines, problems
from bpfsvc.inspect.reader import PinnedReader, open_pinned
from bpfsvc.inspect.recent_failures import ask_failures, refusal_text
from bpfsvc.inspect.services.look import look
from bpfsvc.inspect.status import collect_status
from bpfsvc.model.answers import TOGETHER, ChangeRecord
from bpfsvc.model.events import decode_event
from bpfsvc.model.failures import added
from bpfsvc.page.event_feed import EventFeed
from bpfsvc.page.questions import Answers, Busy, NotHere, Query
from bpfsvc.page.recent import Recent
from bpfsvc.page.services import MOST_ROWS, ORDERS, ListQuery, ServiceList

LIVE_SECONDS = 10.0
MOST_CHANGES = 200
_SHOWN = 8
"""Names of endpoints that the text of a change has."""


class NodeAnswers:
    """Answers about the agent that has its pins at ``pin_root``; any thread may ask."""

    def __init__(self, pin_root: Path, healthz: tuple[str, int] | None) -> None:
        """``healthz``: where the agent serves its health, if it does."""
        self._pin_root = pin_root
        self._agent = AgentAnswers(pin_root)
        self._status = Recent(lambda: collect_status(PinRoot(pin_root), healthz))
        self._services = Recent(self._read_services)
        self._feed = EventFeed.of_agent(pin_root)
        self._explaining = threading.Lock()
        self._watching = threading.Lock()
        """One at a time: each keeps a thread of the server, and a program at every drop."""

    def by_path(self) -> Answers:
        """Return all answers."""
        return {
            "/api/status": self.status,
            "/api/services": self.services,
            "/api/service": self.service,
            "/api/history": self.history,
            "/api/events": self.events,
            "/api/explain": self.explain,
            "/api/explain-live": self.explain_live,
        }

    def status(self, _: Query) -> dict[str, Any]:
        """Return the health of the node, and what it has dropped and refused."""
        facts, at = self._status.get()
        head, *rest = lines(facts)
        pairs = (line.partition(":") for line in rest)
        return {
            "at": at,
            "node": self._node_name(),
            "well": not problems(facts),
            "carries_well": facts.carries is None or not facts.carries.services,
            "head": head,
            "lines": {name: text.strip() for name, _, text in pairs},
            "drops": facts.drops,
            **_carried(facts),
        }

    def services(self, query: Query) -> dict[str, Any]:
        """Return a part of the list of service ports."""
        sort = query.get("sort", "") or "name"
        if sort not in ORDERS:
            raise UsageError(f"{sort!r} is no order of Services", f"choose: {', '.join(ORDERS)}")
        wanted = ListQuery(
            search=query.get("search", ""),
            failing=query.get("failing", "") == "1",
            sort=sort,
            first=_number(query, "first", 0),
            size=_number(query, "size", 50, MOST_ROWS),
        )
        known, at = self._services.get()
        return {"at": at, **known.rows(wanted)}

    def service(self, query: Query) -> dict[str, Any]:
        """Return all that is known of a service port."""
        name, protocol, family = (query.get(field, "") for field in ("name", "protocol", "family"))
        known, at = self._services.get()
        detail = known.detail(name, protocol, family)
        if detail is None:
            text = f"the kernel holds no service port {name} {protocol} {family}"
            raise NotHere(text, "search for it in the list of Services")
        return {"at": at, **detail}

    def history(self, query: Query) -> dict[str, Any]:
        """Return the last changes of a Service, or of all, and the failures of connections."""
        whole = query.get("service", "")
        namespace, slash, name = whole.partition("/")
        if whole and not (namespace and slash and name):
            raise UsageError(f"{whole!r} is not the name of a Service", "write NAMESPACE/SERVICE")
        changes = self._agent.history(namespace, name)
        failed, problem = [], ""
        try:
            failed = added(self._agent.failed(namespace, name))
        except NoAnswer as error:
            problem = error.message
        return {
            "all_changes": len(changes),
            "changes": [_change(record, whole) for record in changes[-MOST_CHANGES:]],
            "failures": [{**failure.fields(), "text": failure.text()} for failure in failed],
            "problem": problem,
        }

    def events(self, query: Query) -> dict[str, Any]:
        """Return the events after a number, as filters want them."""
        wanted = {name: [query[name]] for name in FILTERS if query.get(name)}
        return self._feed.after(_number(query, "after", 0), event_filter(wanted, {}))

    def explain(self, query: Query) -> dict[str, Any]:
        """Return the way of the first packet of a connection."""
        asked, answer, _ = self._explained(query)
        texts = {name: query.get(name, "").strip() for name in ("client", "destination")}
        ends = {"client": texts["client"], "asked": texts["destination"]}
        return {**ends, "from": asked.origin, **answer.to_object()}

    def explain_live(self, query: Query) -> dict[str, Any]:
        """Return what becomes of the real packets of a question, seen for some seconds."""
        if not self._watching.acquire(blocking=False):
            raise Busy("real packets are watched for another browser", "try again in ten seconds")
        try:
            _, _, traffic = self._explained(query)
            began = time.monotonic()
            with open_stream_with_drops(self._pin_root, LIVE_SECONDS) as (stream, missing):
                for line in stream:
                    traffic.add(decode_event(line))
            watched = time.monotonic() - began
        finally:
            self._watching.release()
        return {"missing": missing, "lines": [*traffic.lines(watched)]}

    def _explained(self, query: Query) -> tuple[Question, Answer, LiveTraffic]:
        """Return a question, its answer, and what counts the connections that it is about."""
        client, destination = (query.get(field, "").strip() for field in ("client", "destination"))
        if not client or not destination:
            raise UsageError(
                "the question is incomplete", "it needs a client, and a destination with its port"
            )
        origin = query.get("from", "") or None
        if origin and origin not in ORIGINS:
            raise UsageError(f"{origin!r} is not an origin", f"choose: {', '.join(ORIGINS)}")
        texts = client, query.get("protocol", "") or "TCP", destination
        asked = question_with_names(origin, *texts, query.get("interface", ""), self._agent)
        # Each reads all entries of Services.
        with self._explaining, open_pinned(PinRoot(self._pin_root)) as pinned:
            kernel = live_kernel(pinned, self._agent)
            answer = kernel.answer(asked)
            return asked, answer, LiveTraffic(asked, answer, kernel.own)

    def _read_services(self) -> ServiceList:
        recent = ask_failures(self._pin_root)
        with open_pinned(PinRoot(self._pin_root)) as pinned:
            reader = PinnedReader(pinned)
            return ServiceList(look(reader, required=False, traffic=True, failures=recent))

    def _node_name(self) -> str:
        try:
            return self._agent.node_name
        except BpfsvcError:
            return ""


def _carried(facts: NodeFacts) -> dict[str, Any]:
    carried = facts.carries
    if carried is None:
        return {"seconds": 0, "failing": [], "refusing": []}
    return {
        "seconds": carried.seconds,
        "failing": [
            {
                "service": known.service,
                "backend": backend.backend,
                "text": f"{backend.failed} of {count_text(backend.connections, 'connection')}"
                f" {backend.reason}",
            }
            for known in carried.services
            for backend in known.failing
        ],
        "refusing": [
            {"service": known.service, "text": refusal_text(name, count)}
            for known in carried.services
            for name, count in known.refused.items()
        ],
    }


def _change(record: ChangeRecord, asked: str) -> dict[str, Any]:
    """Return a change as JSON; ``asked``: the Service that it is asked for, if it is for one."""
    services = record.services[:_SHOWN]
    more = len(record.services) - len(services)
    if record.what == TOGETHER:
        others = len(record.services) - 1
        text = f"{others + 1} Services written together"
        if asked:
            text, services, more = f"written together with {others} others", [asked], 0
    else:
        endpoints, frontends = record.endpoints, record.frontends
        names = (endpoints.added, endpoints.removed), (frontends.added, frontends.removed)
        text = change_text(record.what, *names, _SHOWN)
    return {
        "at": record.at,
        "services": services,
        "more": more,
        "text": text,
        "waited_ms": record.waited_ms,
    }


def _number(query: Query, name: str, default: int, most: int = 1 << 31) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) > most:
        raise UsageError(f"{name}={text} is not a number", f"write one from 0 to {most}")
    return int(text)
