"""``make repeat``: run tests so many times, each time in a new process, and count failures."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.repeat.results import Result, read_results

_PYTEST = (sys.executable, "-m", "pytest", "-p", "bpfsvc.devtools.lab.pytest_plugin")
_TESTS_FAILED = 1
"""pytest's exit status if tests failed; a higher one says that it could not run them."""


def main() -> int:
    """Run the tests; the status is 1 if any failed in any run, and pytest's if it cannot run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("arguments", nargs="*", help="of pytest, behind --")
    arguments = parser.parse_args()
    failures: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    messages: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "results.xml"
        for number in range(1, arguments.times + 1):
            command = [*_PYTEST, "-q", f"--junitxml={file}", *arguments.arguments]
            status = subprocess.run(command, capture_output=True, text=True, check=False)
            if status.returncode > _TESTS_FAILED:
                print(status.stdout, status.stderr, file=sys.stderr)
                return status.returncode
            results = read_results(file.read_text())
            runs.update(result.test for result in results)
            failed = [result for result in results if result.failure]
            failures.update(result.test for result in failed)
            messages.update({result.test: result.failure for result in failed})
            print(f"run {number}: {_summary(results, failed)}", flush=True)
    for test, count in failures.most_common():
        print(f"{count} of {runs[test]}: {test}\n    {messages[test]}")
    if not failures:
        print(f"none of {len(runs)} tests failed")
    return bool(failures)


def _summary(results: list[Result], failed: list[Result]) -> str:
    names = "".join(f"\n  {result.test}" for result in failed)
    return f"{len(failed)} of {len(results)} tests failed{names}"


if __name__ == "__main__":
    sys.exit(main())
