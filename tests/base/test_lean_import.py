"""The agent loads pyroute2.iproute, and not all of pyroute2."""

from __future__ import annotations

import subprocess
import sys

import pytest

NETLINK = "import bpfsvc.datapath.netlink.tc, bpfsvc.datapath.netlink.monitor"

SCRIPTS = {
    "nothing else of it is loaded": (
        f"{NETLINK}, sys; print('asyncio' in sys.modules, 'sqlite3' in sys.modules)",
        "True False",
    ),
    "the ordinary package can still be imported": (
        f"{NETLINK}; from pyroute2 import IPRoute; print(IPRoute.__name__)",
        "IPRoute",
    ),
    "the ordinary package may have been imported before": (
        f"from pyroute2 import IPRoute; {NETLINK}; print(IPRoute.__name__)",
        "IPRoute",
    ),
    "a package that is not there is an error as usual": (
        "from bpfsvc.base.lean_import import bare_package\n"
        "try:\n"
        "    with bare_package('no_such_package'): pass\n"
        "except ModuleNotFoundError as error: print(error)",
        "No module named 'no_such_package'",
    ),
}


@pytest.mark.parametrize(("script", "expected"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_bare_import(script: str, expected: str) -> None:
    """A part of a package is imported without the rest; other imports of it work as usual."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{script}"], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == expected
