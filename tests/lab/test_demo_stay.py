"""The demonstration's lab that stays: the commands to go on with work as they are printed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bpfsvc.devtools.demo import stay
from bpfsvc.devtools.demo.testbed import DemoTestbed

SHOWN = ("default/nginx-service", "dnat  10.107.33.105:80/TCP of default/nginx-service", '"pod": "')


@pytest.mark.slow
def test_each_command_to_go_on_with_shows_what_it_promises_until_the_lab_ends(
    tmp_path: Path,
) -> None:
    with DemoTestbed("routed", None) as testbed:
        testbed.cluster.start()
        stay.write_scripts(testbed, tmp_path)
        commands = stay.commands(testbed, tmp_path)
        for (_, command), shown in zip(commands, SHOWN, strict=True):
            done = subprocess.run(
                command, shell=True, capture_output=True, text=True, check=False, timeout=60
            )
            assert (done.returncode, done.stderr) == (0, "")
            assert shown in done.stdout
    for _, command in commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "the demonstration has ended\n")
