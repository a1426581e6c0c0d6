"""A headless Chromium in a namespace of the lab, driven by the DevTools protocol through a pipe.

The namespace has no way out, and the browser is told to ask for nothing by itself.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from bpfsvc.devtools.lab.namespace import LabError, Namespace
from bpfsvc.devtools.lab.patience import stretched, wait

CHROMIUM = "chromium"

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # it runs as root, in the sandbox of the lab
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

_LEFT = "Inspected target navigated or closed"
"""What the browser answers while it goes to another page."""
_SECONDS = 30.0

Answer = dict[str, Any]


class Browser:
    """One tab."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._poll = select.poll()  # select() takes no descriptor above 1023
        self._poll.register(reading, select.POLLIN)
        self._received = b""
        self._number = 0
        self._session = ""
        self.events: deque[Answer] = deque()
        """What the tab has told of by itself."""

    def open_tab(self) -> None:
        """Open the tab, and be told of its errors and its requests."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> Answer:
        """Return the result of a command; ``LabError`` if the browser refuses it."""
        self._number += 1
        message: Answer = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + stretched(_SECONDS)
        while True:
            answer = self._next(deadline)
            if answer.get("id") != self._number:
                self.events.append(answer)
                continue
            if "error" in answer:
                raise LabError(f"{method}: {answer['error']['message']}")
            result: Answer = answer["result"]
            return result

    def _next(self, deadline: float) -> Answer:
        while b"\0" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not self._poll.poll(1000 * left):
                raise TimeoutError("the browser does not answer")
            part = os.read(self._reading, 1 << 20)
            if not part:
                raise LabError("the browser has ended")
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        answer: Answer = json.loads(message)
        return answer

    # -- what a person does --

    def go(self, url: str, expected: str) -> None:
        """Open an address, and wait for a text on the page."""
        self.ask("Page.navigate", url=url)
        self.expect(expected)

    def value(self, script: str) -> Any:
        """Return the value of a script in the page."""
        result = self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise LabError(f"the page: {result['exceptionDetails']}")
        return result["result"].get("value")

    def text(self) -> str:
        """Return the text that is seen."""
        return str(self.value("document.body ? document.body.innerText : ''"))

    def expect(self, text: str, seconds: float = 20.0) -> None:
        """Wait for a text on the page; the error has the page's text."""

        def is_there() -> bool:
            try:
                return text in self.text()
            except LabError as error:
                if _LEFT not in str(error):
                    raise
                return False

        try:
            wait(is_there, f"{text!r} on the page", seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the page is:\n{self.text()}") from None

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press a key and release it."""
        same = {"key": key, "windowsVirtualKeyCode": code}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **same)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **same)

    def write(self, text: str) -> None:
        """Write a text where the focus is."""
        self.ask("Input.insertText", text=text)

    def look(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the size of the screen, and whether the user prefers dark colors."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.ask("Emulation.setDeviceMetricsOverride", mobile=width < 600, **metrics)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, path: Path) -> None:
        """Save a screenshot of what is seen."""
        data = self.ask("Page.captureScreenshot", format="png", optimizeForSpeed=False)["data"]
        path.write_bytes(base64.b64decode(data))

    def violations(self) -> list[str]:
        """Return what axe finds against accessibility, a line each."""
        self.value(files("axe_core_python").joinpath("axe.min.js").read_text() + ";0")
        answer = self.value("axe.run().then((found) => JSON.stringify(found.violations))")
        return [
            f"{rule['id']} ({rule['impact']}): {node['html']} {node.get('failureSummary', '')}"
            for rule in json.loads(answer)
            for node in rule["nodes"]
        ]

    def complaints(self) -> list[str]:
        """Return errors of scripts and of the page's policy, and requests to other servers."""
        self.value("0")
        texts = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                texts.append(str(parameters["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded":
                entry = parameters["entry"]
                if entry["level"] == "error" and entry["source"] != "network":
                    texts.append(str(entry["text"]))
            elif event.get("method") == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith(("http://127.0.0.1:", "about:", "data:")):
                    texts.append(f"a request to {url}")
        return texts


@contextmanager
def _directory() -> Iterator[str]:
    """A directory for one browser; its processes may write there for a while after its end."""
    directory = tempfile.mkdtemp(prefix="bpfsvc-page-")

    def removed() -> bool:
        shutil.rmtree(directory, ignore_errors=True)
        return not Path(directory).exists()

    try:
        yield directory
    finally:
        wait(removed, f"no process of the browser writes into {directory}")


@contextmanager
def running_browser(namespace: Namespace) -> Iterator[Browser]:
    """Run a browser until the end of the block."""
    program = shutil.which(CHROMIUM)
    if program is None:
        raise LabError(f"there is no {CHROMIUM} here", "install it with: make browser")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with _directory() as directory:
        with Path(directory, "log").open("wb") as log:
            process = namespace.popen(
                _command(program, directory, theirs_in, theirs_out),
                pass_fds=(theirs_in, theirs_out),
                stdin=log,
                stdout=log,
                stderr=log,
                env={**os.environ, "HOME": directory, "DBUS_SESSION_BUS_ADDRESS": "disabled:"},
            )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            browser = Browser(ours_in, ours_out)
            browser.open_tab()
            yield browser
        except (LabError, TimeoutError) as error:
            if process.poll() is None:
                raise
            text = Path(directory, "log").read_text(errors="replace")[-2000:]
            raise LabError(f"{error}; the browser said:\n{text}") from error
        finally:
            os.close(ours_in)
            os.close(ours_out)
            namespace.end(process)


def _command(program: str, directory: str, reading: int, writing: int) -> Sequence[str]:
    """Return a shell's command: the browser reads from descriptor 3 and writes to 4."""
    script = f'exec "$0" "$@" 3<&{reading} 4>&{writing}'
    return ("bash", "-c", script, program, *_FLAGS, f"--user-data-dir={directory}/profile")
