"""The page of all nodes in a real browser: it asks each agent through the API server.

The API server of the lab forwards ports as a kubelet does: to 127.0.0.1 of the node, where the
pages are, and where neither pods nor other machines reach them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from bpfsvc.devtools.lab import supply
from bpfsvc.devtools.lab.cluster import COMMAND
from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.objects import pod
from bpfsvc.devtools.lab.patience import wait
from tests.lab.testbed import EMPTY, WEB, Testbed, built_testbed, objects
from tests.page.browser import Browser, running_browser

pytestmark = pytest.mark.slow

PAGE = "http://127.0.0.1:10286/"
DESK, PHONE = (1200, 800), (380, 760)
PICTURES = os.environ.get("BPFSVC_PAGE_PICTURES", "")


class Looked(NamedTuple):
    """Two nodes, an API server on the client's machine, and a browser there."""

    testbed: Testbed
    browser: Browser

    def show(self, expected: str) -> None:
        """Open the page of all nodes anew, and wait for a text."""
        self.browser.go("about:blank", "")
        self.browser.go(PAGE, "All nodes")
        self.browser.expect(expected, 60)

    def refuse(self) -> None:
        """Have a client refused on each node."""
        for node in self.testbed.lab.nodes:
            with suppress(OSError):
                ask(self.testbed.client, node.address(4), EMPTY.node_port)


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Looked]:
    with built_testbed(layout="routed", nodes=2, served=True) as made:
        cluster, nodes = made.cluster, {node.name: node for node in made.lab.nodes}
        cluster.put("web", *objects(WEB, made.lab.pods))
        cluster.put("empty", *objects(EMPTY, []))
        for name in nodes:
            agent = pod(f"bpfsvc-of-{name}", [], name, "kube-system")
            agent["metadata"]["labels"] = {"app.kubernetes.io/name": "bpfsvc"}
            agent["status"]["phase"] = "Running"
            cluster.put(name, agent)

        def dial(_: str, name: str, port: int) -> socket.socket:
            target = nodes[name.removeprefix("bpfsvc-of-")].socket(socket.AF_INET)
            target.settimeout(30)
            try:
                target.connect(("127.0.0.1", port))
            except OSError:
                target.close()
                raise
            return target

        cluster.api.dial = dial
        cluster.start()
        directory = tmp_path_factory.mktemp("fleet")
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(
            json.dumps(supply.kubeconfig(cluster.api.url(made.lab.client.address())))
        )
        with (directory / "log").open("wb") as log:
            words = ("page", "--fleet", "--kubeconfig", str(kubeconfig))
            process = made.client.popen([*COMMAND, *words], stderr=log)
        try:
            with running_browser(made.client) as browser:
                log_file = directory / "log"
                wait(lambda: "serving http" in log_file.read_text(), "the page is served", 30)
                yield Looked(made, browser)
        finally:
            process.terminate()
            process.wait()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_of_all_nodes_can_be_used_by_everybody(looked: Looked, scheme: str) -> None:
    """axe examines it with a fault that both nodes see."""
    browser = looked.browser

    def named() -> bool:
        looked.refuse()
        return "clients are refused node-1, node-2" in " ".join(browser.text().split())

    browser.look(*DESK, scheme)
    looked.show("2 of 2 nodes answer")
    try:
        wait(named, "both nodes see the fault", 60)
    except TimeoutError as error:
        raise TimeoutError(f"{error}; the page is:\n{browser.text()}") from None
    for size in (DESK, PHONE):
        browser.look(*size, scheme)
        assert browser.violations() == []
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.value(overflow) <= 0, "the page scrolls sideways"
        if PICTURES:
            name = f"fleet{'-dark' * (scheme == 'dark')}{'-phone' * (size == PHONE)}.png"
            browser.picture(Path(PICTURES, name))
    assert browser.complaints() == []


def test_a_node_leads_to_its_own_page_and_back(looked: Looked) -> None:
    browser = looked.browser
    browser.look(*DESK)
    looked.show("2 of 2 nodes answer")
    browser.value("[...document.querySelectorAll('a')].find(a => a.text === 'node-2').click()")
    browser.expect("Agent: healthy")
    assert browser.value("document.querySelector('.name').textContent") == "bpfsvc node-2"
    browser.value("document.querySelector('a[href=\"#services\"]').click()")
    browser.expect(f"default/{WEB.name}:web")
    assert browser.value("location.search + location.hash") == "?node=node-2#services"
    assert browser.violations() == []
    browser.value("[...document.querySelectorAll('a')].find(a => a.text === 'All nodes').click()")
    browser.expect("2 of 2 nodes answer", 60)
    assert browser.complaints() == []


def test_who_may_not_forward_ports_is_told_so(looked: Looked) -> None:
    faults = looked.testbed.cluster.api.faults
    faults.forbidden = frozenset({"pods/portforward"})
    looked.show('cannot create resource "pods/portforward"')
    looked.browser.expect("0 of 2 nodes answer")
    faults.forbidden = frozenset()
    looked.show("2 of 2 nodes answer")


def test_a_node_whose_agent_is_gone_says_why_and_the_other_answers(looked: Looked) -> None:
    testbed = looked.testbed
    looked.testbed.cluster.kill(testbed.lab.nodes[1])
    looked.show("1 of 2 nodes answer")
    text = looked.browser.text()
    assert "error forwarding port 10286 to pod bpfsvc-of-node-2" in text
    assert "refused" in text


def test_a_kubeconfig_that_cannot_be_read_is_one_line(looked: Looked) -> None:
    words = [*COMMAND, "page", "--fleet", "--kubeconfig", "/nonexistent/kubeconfig"]
    with pytest.raises(Exception, match=r"/nonexistent/kubeconfig") as failed:
        looked.testbed.client.run(words)
    assert "Traceback" not in str(failed.value)
    assert not isinstance(failed.value, subprocess.TimeoutExpired)
