"""``python -m bpfsvc.devtools.lab.apiserver ADDRESS:PORT``: the server as a process.

It prints its URL in one line of JSON when it listens; it ends at the end of its standard input or
at a signal. A benchmark of an agent runs the server on another core, and orders what it holds
through ``control``.
"""

from __future__ import annotations

import json
import signal
import sys

from bpfsvc.devtools.lab.apiserver.control import Control
from bpfsvc.devtools.lab.apiserver.server import ApiServer

_SWITCH = 0.0005  # seconds after which Python lets another thread run: the watchers are waiting


def main(listen: str) -> None:
    """Serve until a signal ends the process."""
    sys.setswitchinterval(_SWITCH)
    server = ApiServer()
    server.control = Control(server)
    host, _, port = listen.rpartition(":")
    print(json.dumps({"url": server.start(host, int(port))}), flush=True)
    try:
        sys.stdin.read()
    finally:
        server.close()


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    main(sys.argv[1])
