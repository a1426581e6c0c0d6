"""``python -m bpfsvc.devtools.bench``: ``bpfsvc bench``, without the commands of the product."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", "bpfsvc", "bench", *sys.argv[1:]])
