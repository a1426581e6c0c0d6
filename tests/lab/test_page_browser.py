"""The page of a node in a real browser: what a person sees and types, and 10,000 Services."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.objects import port, service, slices
from bpfsvc.devtools.lab.patience import wait
from tests.lab.testbed import EMPTY, WEB, Testbed, built_testbed, objects
from tests.page.browser import Browser, running_browser

pytestmark = pytest.mark.slow

PAGE = "http://127.0.0.1:10286/"
NAME = f"default/{WEB.name}:web"
MANY = 10_000
DESK, PHONE = (1200, 800), (380, 760)

VIEWS = {
    "status": ("#status", "Agent: healthy"),
    "services": ("#services?search=default/web", NAME),
    "service": (f"#service?name={NAME}&protocol=TCP&family=IPv4", "nodeport:30010/TCP"),
    "events": ("#events", "made TCP"),
    "history": (f"#history?service=default/{WEB.name}", "written together with"),
    "explain": (
        f"#explain?from=external&client=203.0.113.9&destination={WEB.vip(4)}:80",
        "frontend",
    ),
}
"""By name: the fragment of a view, and a text that it shows."""

PICTURES = os.environ.get("BPFSVC_PAGE_PICTURES", "")
"""The directory for screenshots; "make page-pictures" sets it."""


class Looked(NamedTuple):
    """A node with many Services and traffic, and a browser on it."""

    testbed: Testbed
    browser: Browser

    def traffic(self) -> None:
        """Open some connections, and one that is refused."""
        node, client = self.testbed.node, self.testbed.client
        for _ in range(4):
            ask(client, node.address(4), WEB.node_port)
        with suppress(OSError):
            ask(client, node.address(4), EMPTY.node_port)

    def show(self, view: str) -> None:
        """Show a view, with traffic for the one that shows it live."""
        place, text = VIEWS[view]
        self.browser.go("about:blank", "")
        self.browser.ask("Page.navigate", url=PAGE + place)

        last = 0.0

        def shown() -> bool:
            nonlocal last
            if view == "events" and time.monotonic() > last + 1:
                self.traffic()
                last = time.monotonic()
            return text in self.browser.text()

        try:
            wait(shown, f"{text!r} in the view {view}", 30)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the page is:\n{self.browser.text()}") from None


@pytest.fixture(scope="module")
def looked() -> Iterator[Looked]:
    with built_testbed(layout="routed", nodes=1) as made:
        made.cluster.put("web", *objects(WEB, made.lab.pods))
        made.cluster.put("empty", *objects(EMPTY, []))
        items = [item for number in range(MANY) for item in many(made, number)]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        made.cluster.put_text("many.json", text)
        made.cluster.launch(made.node)
        made.cluster.agents[made.node.name].ready(120)
        with running_browser(made.node) as browser:
            looked = Looked(made, browser)
            looked.traffic()
            yield looked


def many(testbed: Testbed, number: int) -> list[dict[str, object]]:
    """Return one of the ten thousand Services; its name comes before the others' by letters."""
    name, address = (
        f"many-{number:05}",
        f"10.{100 + number // 25000}.{number // 250}.{number % 250}",
    )
    made = service(name, [address], [port(80, "web")])
    return [made, *slices(name, testbed.lab.pods[:1], [port(8080, "web")])]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_can_be_used_by_everybody(looked: Looked, view: str, scheme: str) -> None:
    """axe examines contrast, labels, headings, landmarks and tables, on a desk and a phone."""
    for size in (DESK, PHONE):
        looked.browser.look(*size, scheme)
        looked.show(view)
        assert looked.browser.violations() == []
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert looked.browser.value(overflow) <= 0, "the page scrolls sideways"
        if PICTURES:
            name = f"{view}{'-dark' * (scheme == 'dark')}{'-phone' * (size == PHONE)}.png"
            looked.browser.picture(Path(PICTURES, name))
    assert looked.browser.complaints() == []


def test_ten_thousand_services_are_searched_and_paged_by_the_server(looked: Looked) -> None:
    browser = looked.browser
    browser.look(*DESK)
    browser.go(f"{PAGE}#services", "service ports")
    rows = "document.querySelectorAll('tbody tr').length"
    wait(lambda: browser.value(rows) == 50, "a page of rows", 30)
    browser.value("[...document.querySelectorAll('a')].find(a => a.text === 'Next page').click()")
    browser.expect("51 to 100 of")
    assert browser.value(rows) == 50
    browser.value("document.querySelector('input[name=search]').focus()")
    browser.write("many-09876")
    browser.press("Enter", 13, "\r")
    browser.expect("1 of 10,")
    assert browser.value("location.hash").startswith("#services?search=many-09876")
    assert browser.value(rows) == 1


def test_the_keyboard_alone_leads_to_a_service(looked: Looked) -> None:
    browser = looked.browser
    looked.show("services")
    browser.value("document.activeElement.blur()")
    for _ in range(20):
        browser.press("Tab", 9)
        if browser.value("document.activeElement.textContent") == NAME:
            break
    else:
        raise AssertionError("no Tab leads to the Service")
    browser.press("Enter", 13, "\r")
    browser.expect("Where clients send to")
    # A screen reader goes on from the heading of the new view.
    assert browser.value("document.activeElement.tagName") == "H1"


def test_the_focus_stays_on_a_link_when_the_list_is_shown_again(looked: Looked) -> None:
    browser = looked.browser
    looked.show("services")
    before = browser.value(
        "window.before = document.querySelector('tbody a'); window.before.focus();"
        "window.before.textContent"
    )
    wait(lambda: browser.value("!window.before.isConnected"), "the list is shown again", 40)
    assert browser.value("document.activeElement.textContent") == before


def test_a_link_from_a_ticket_shows_the_same_question_and_answer(looked: Looked) -> None:
    looked.show("explain")
    browser = looked.browser
    assert browser.value("document.querySelector('input[name=client]').value") == "203.0.113.9"
    assert f"frontend {WEB.vip(4)}:80/TCP of default/{WEB.name}" in browser.text()
    assert browser.value("document.querySelectorAll('ol.way > li').length") >= 3


def test_the_button_of_explain_watches_real_packets(looked: Looked) -> None:
    looked.show("explain")
    browser = looked.browser
    browser.value("[...document.querySelectorAll('button')].at(-1).click()")
    browser.expect(" s: nothing was seen of 203.0.113.9 to default/web", 60)
    watched = re.search(r"live for (\d+) s: ", browser.text())
    assert watched
    assert int(watched[1]) >= 10
    assert browser.violations() == []
    assert not browser.value("[...document.querySelectorAll('button')].at(-1).disabled")


def test_markup_in_an_address_is_text(looked: Looked) -> None:
    browser = looked.browser
    attack = "%3Cimg%20src%3Dx%20onerror%3D%22window.hit%3D1%22%3E"
    for view, field in (("history", "service"), ("services", "search"), ("service", "name")):
        browser.go("about:blank", "")
        browser.go(f"{PAGE}#{view}?{field}={attack}", "bpfsvc")
        wait(lambda: not browser.value("!!document.querySelector('[aria-busy]')"), "answered", 20)
        assert browser.value("window.hit === undefined && !document.querySelector('main img')")
    assert browser.complaints() == []


def test_a_question_that_makes_no_sense_is_answered_in_words(looked: Looked) -> None:
    looked.browser.go("about:blank", "")
    looked.browser.go(
        f"{PAGE}#explain?client=nobody&destination=x", "'nobody' is not an IP address"
    )
