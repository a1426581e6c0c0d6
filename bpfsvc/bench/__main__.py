"""``python -m bpfsvc.bench``: the same as ``bpfsvc bench``, whose module no part of this knows."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", "bpfsvc", "bench", *sys.argv[1:]])
