"""A kubectl that answers from a file: what its argument list asks for, and nothing else.

It is a program of its own, so it imports the standard library only. ``exec`` really runs the words
behind ``--``, with a command ``bpfsvc`` in PATH that answers for its pod.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def main(words: list[str]) -> int:
    """Answer; each call is noted."""
    with (FOLDER / "calls").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    state = json.loads((FOLDER / "state.json").read_text())
    words = [word for word in words if not word.startswith(("--context=", "--kubeconfig="))]
    asked = " ".join(words)
    for start, text in state.get("refused", {}).items():
        if asked.startswith(start):
            print(f"Error from server (Forbidden): {text}", file=sys.stderr)
            return 1
    if words[0] == "exec":
        return execute(words)
    name = " ".join(words[:2]) if words[1] == "--raw" else words[0]
    if name == "get":
        return get(state, words[1:])
    if name == "logs" and words[-1] in state["logs"]:
        return logs(state["logs"][words[-1]], words)
    answer = state["answers"][name]
    print(answer["out"], end="")
    print(answer.get("err", ""), file=sys.stderr, end="")
    return int(answer.get("status", 0))


def get(state: dict[str, Any], words: list[str]) -> int:
    options = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
    kind, *name = [word for word in words if not word.startswith("-") and word != "json"]
    kind = kind if kind.endswith("s") else f"{kind}s"
    wanted = {
        "metadata.namespace": options.get("--namespace"),
        **dict(part.split("=") for part in options.get("--field-selector", "").split(",") if part),
        **({"metadata.name": name[0]} if name else {}),
    }
    labels = dict(part.split("=") for part in options.get("--selector", "").split(",") if part)
    items = [
        item
        for item in state.get(kind, [])
        if all(value in (None, field(item, path)) for path, value in wanted.items())
        and labels.items() <= item["metadata"].get("labels", {}).items()
    ]
    if name and not items:
        print(f'Error from server (NotFound): {kind} "{name[0]}" not found', file=sys.stderr)
        return 1
    print(json.dumps(items[0] if name else {"kind": "List", "items": items}))
    return 0


def logs(of_pod: dict[str, str], words: list[str]) -> int:
    assert "--container=bpfsvc" in words, "a pod has other containers, too"
    which = "previous" if "--previous" in words else "current"
    if which not in of_pod:
        print("Error from server (BadRequest): previous container not found", file=sys.stderr)
        return 1
    print(of_pod[which])
    return 0


def field(item: Any, path: str) -> Any:
    for step in path.split("."):
        item = item.get(step, {})
    return item


def execute(words: list[str]) -> int:
    cut = words.index("--")
    (pod,) = [word for word in words[1:cut] if not word.startswith("-")]
    # As kubectl exec: without -i, the command has no standard input.
    given = None if "-i" in words[:cut] else subprocess.DEVNULL
    environment = {**os.environ, "POD": pod}
    status = subprocess.run(words[cut + 1 :], stdin=given, env=environment, check=False).returncode
    if status:
        print(f"command terminated with exit code {status}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
