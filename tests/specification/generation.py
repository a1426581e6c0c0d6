"""Make any number of cases, with what the specification expects of each flow.

``python -m tests.specification.generation 200 --seed 7 > cases.json`` writes a file in the format
of the sample. The same number and seed give the same cases as long as the strategies are the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.specification.cases import FORMAT, written
from tests.specification.objects import Raw
from tests.specification.traffic import cases

CATEGORY = "random"


def random_cases(count: int, number: int = 0) -> list[dict[str, Any]]:
    """Draw cases, each with at least one flow that can be checked; ``number`` is the seed."""
    found: list[dict[str, Any]] = []

    @seed(number)
    @settings(
        max_examples=2 * count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def collect(case: Raw) -> None:
        named = written({**case, "id": f"{CATEGORY}-{number}-{len(found) + 1:04}"})
        if named["flows"] and len(found) < count:
            found.append(named)

    collect()
    return found


def main() -> None:
    """Write the cases that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    made = random_cases(arguments.count, arguments.seed)
    json.dump({"format": FORMAT, "cases": made}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
