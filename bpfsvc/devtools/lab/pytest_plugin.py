"""``pytest -p bpfsvc.devtools.lab.pytest_plugin``: the whole run takes place in a sandbox.

pytest loads plugins named on the command line before it captures output or imports a test, which
is the last moment at which the process can be started again inside.
"""

from __future__ import annotations

from bpfsvc.devtools.lab import sandbox

sandbox.enter()
