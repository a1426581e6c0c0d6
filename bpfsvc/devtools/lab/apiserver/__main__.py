"""``python -m bpfsvc.devtools.lab.apiserver``: the server as a separate process, for benchmarks.

It prints its address in one line of JSON when it listens and is filled; it ends at the end of its
standard input or at a signal. A benchmark of an agent runs the server on another core, and controls
it through ``control``.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from bpfsvc.devtools.lab.apiserver.control import Control
from bpfsvc.devtools.lab.apiserver.replay import lists
from bpfsvc.devtools.lab.apiserver.server import ApiServer

_SWITCH = 0.0005  # seconds after which Python lets another thread run: the watchers are waiting


def main() -> None:
    """Serve until a signal ends the process."""
    asked = _arguments()
    sys.setswitchinterval(_SWITCH)
    server = ApiServer(
        certificate=asked.certificate,
        key=asked.key,
        client_ca=asked.client_ca,
        history=asked.history,
        tokens=frozenset(asked.token) if asked.token else None,
        bookmark_period=asked.bookmark_period,
    )
    control = Control(server)
    server.control = control
    for body in lists(asked.load) if asked.load else ():
        server.store.load(body)
    if asked.fill:
        control.fill(asked.fill, asked.endpoints)
    host, _, port = asked.listen.rpartition(":")
    host = host.strip("[]")
    said = {"url": server.start(host, int(port))}
    second = None
    if asked.control:
        second = ApiServer()
        second.control = control
        where, _, number = asked.control.rpartition(":")
        said["control"] = second.start(where.strip("[]"), int(number))
    print(json.dumps(said), flush=True)
    try:
        sys.stdin.read()
    finally:
        server.close()
        if second is not None:
            second.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bpfsvc.devtools.lab.apiserver", description=__doc__
    )
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="ADDRESS:PORT")
    parser.add_argument(
        "--control",
        metavar="ADDRESS:PORT",
        help="answer /control/ here too, always in plain HTTP and while the server is away",
    )
    parser.add_argument("--fill", type=int, default=0, metavar="SERVICES")
    parser.add_argument("--endpoints", type=int, default=4, help="of each Service (4)")
    parser.add_argument(
        "--load", type=Path, metavar="DIRECTORY", help="recorded lists to begin with"
    )
    parser.add_argument("--certificate", type=Path)
    parser.add_argument("--key", type=Path)
    parser.add_argument("--client-ca", type=Path)
    parser.add_argument("--token", action="append", help="a bearer token to accept; repeatable")
    parser.add_argument("--history", type=int, default=20_000, help="changes remembered (20000)")
    parser.add_argument("--bookmark-period", type=float, default=60.0, metavar="SECONDS")
    return parser.parse_args()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    main()
