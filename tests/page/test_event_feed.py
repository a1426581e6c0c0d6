"""Events for browsers: one stream of the agent, however many ask."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from bpfsvc.devtools.lab.patience import wait
from bpfsvc.inspect.events.agent_stream import NoStream
from bpfsvc.inspect.events.filters import event_filter
from bpfsvc.model.events import Event, EventEnd, EventService, encode_event
from bpfsvc.page.event_feed import MOST_AT_ONCE, REMEMBERED, EventFeed

ALL = event_filter({}, {})


class Agent:
    """Streams what a test puts into it."""

    def __init__(self) -> None:
        self.lines: SimpleQueue[bytes | None] = SimpleQueue()
        self.streams = 0
        self.open = threading.Semaphore(0)
        self.now = 0.0

    def tell(
        self, number: int = 1, *, name: str = "web", kind: str = "made", lost: int = 0
    ) -> None:
        for _ in range(number):
            event = Event(1.0, "node-1", lost=lost, lost_by="kernel")
            if not lost:
                client = EventEnd("10.244.1.5", 40000, "shop/<b>pod</b>")
                service = EventService("shop", name, "http")
                event = Event(1.0, "node-1", kind, protocol="TCP", service=service, client=client)
            self.lines.put(encode_event(event))

    @contextmanager
    def stream(self) -> Iterator[Iterator[bytes]]:
        self.streams += 1
        yield iter(self.lines.get, None)
        self.open.release()

    def feed(self) -> EventFeed:
        return EventFeed(self.stream, lambda: self.now)


def holds(feed: EventFeed, last: int) -> None:
    wait(lambda: feed.after(0, ALL)["last"] == last, f"{last} events")


def test_many_browsers_are_one_reader_of_the_agent() -> None:
    agent = Agent()
    feed = agent.feed()
    agent.tell(3)
    for _ in range(50):
        feed.after(0, ALL)
    holds(feed, 3)
    assert agent.streams == 1


def test_only_what_is_new_is_answered() -> None:
    agent = Agent()
    feed = agent.feed()
    agent.tell(3)
    holds(feed, 3)
    assert feed.after(3, ALL)["events"] == []
    agent.tell(kind="refused")
    holds(feed, 4)
    assert [event["kind"] for event in feed.after(3, ALL)["events"]] == ["refused"]


def test_a_filter_hides_other_services_and_no_loss() -> None:
    agent = Agent()
    feed = agent.feed()
    agent.tell(2, name="other")
    agent.tell(lost=7)
    agent.tell()
    holds(feed, 4)
    answer = feed.after(0, event_filter({"service": ["web"]}, {}))
    assert [event["kind"] for event in answer["events"]] == ["lost", "made"]
    assert "7 events" in answer["events"][0]["text"]


def test_memory_and_answers_are_bounded_and_say_what_is_missing() -> None:
    agent = Agent()
    feed = agent.feed()
    agent.tell(REMEMBERED + 100)
    holds(feed, REMEMBERED + 100)
    answer = feed.after(50, ALL)
    assert len(answer["events"]) == MOST_AT_ONCE
    assert answer["missed"] == 50 + REMEMBERED - MOST_AT_ONCE


def test_a_browser_that_knows_another_process_gets_all_that_is_known() -> None:
    agent = Agent()
    feed = agent.feed()
    agent.tell(2)
    holds(feed, 2)
    assert len(feed.after(900, ALL)["events"]) == 2


def test_the_stream_ends_when_nobody_asks_any_more() -> None:
    agent = Agent()
    feed = agent.feed()
    agent.tell()
    holds(feed, 1)
    agent.now += 60
    agent.tell()
    assert agent.open.acquire(timeout=10)
    agent.tell()
    holds(feed, 3)
    assert agent.streams == 2


def test_why_there_are_no_events_is_said() -> None:
    @contextmanager
    def refused() -> Iterator[Iterator[bytes]]:
        raise NoStream("16 commands read events already")
        yield iter(())

    feed = EventFeed(refused)
    wait(lambda: bool(feed.after(0, ALL)["error"]), "an error")
    assert feed.after(0, ALL)["error"] == "16 commands read events already"


def test_texts_are_data_and_stay_as_they_are() -> None:
    agent = Agent()
    feed = agent.feed()
    agent.tell()
    holds(feed, 1)
    (event,) = feed.after(0, ALL)["events"]
    assert "shop/<b>pod</b>" in event["client"]
