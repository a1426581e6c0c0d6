"""The command line: help for everything, one clear line for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from bpfsvc import __version__
from bpfsvc.base.errors import KernelError
from bpfsvc.cli.main import COMMANDS, main


def bpfsvc(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="bpfsvc")


def test_help_lists_all_commands_with_a_line_each() -> None:
    done = bpfsvc("--help")
    assert done.exit_code == 0
    for name, (_, description) in COMMANDS.items():
        assert any(line.split(None, 1) == [name, description] for line in done.output.splitlines())


@pytest.mark.parametrize(
    "command", [*([name] for name in COMMANDS), ["maps", "dump"]], ids=" ".join
)
def test_every_command_explains_itself_and_its_options(command: list[str]) -> None:
    done = bpfsvc(*command, "--help")
    assert done.exit_code == 0
    assert done.output.startswith(f"Usage: bpfsvc {' '.join(command)} ")
    assert bpfsvc(*command, "-h").output == done.output


def test_every_option_has_a_description() -> None:
    context = click.Context(main)
    commands: list[click.Command] = [main]
    while commands:
        command = commands.pop()
        if isinstance(command, click.Group):
            members = [
                command.get_command(context, name) for name in command.list_commands(context)
            ]
            commands += [member for member in members if member]
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{command.name} {parameter.name}"


def test_help_and_the_agent_import_nothing_they_do_not_need() -> None:
    """Each of these libraries would stay in the agent's memory."""
    script = (
        "import sys\n"
        "from bpfsvc.cli.main import main\n"
        "try:\n    main(sys.argv[1:], prog_name='bpfsvc')\n"
        "except SystemExit:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    for arguments in (["--help"], ["run", "--help"]):
        command = [sys.executable, "-c", script, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        loaded = set(done.stderr.split())
        assert "bpfsvc.cli" in loaded
        assert not loaded & {"rich", "bcc", "bpfsvc.inspect", "bpfsvc.cli.maps"}
        if arguments == ["--help"]:
            assert not loaded & {"yaml", "msgspec", "pyroute2", "bpfsvc.agent.agent"}


def test_the_version_is_printed() -> None:
    assert bpfsvc("--version").output == f"bpfsvc {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message", "see"),
    [
        pytest.param(["--frob"], "No such option", "bpfsvc", id="an unknown flag"),
        pytest.param(["frob"], "No such command 'frob'", "bpfsvc", id="an unknown command"),
        pytest.param(
            ["servces"],
            "No such command 'servces'; did you mean services?",
            "bpfsvc",
            id="a mistyped command",
        ),
        pytest.param(
            ["run", "--cluster-cird", "10.0.0.0/8"],
            "Did you mean '--cluster-cidr'?",
            "bpfsvc run",
            id="a mistyped flag",
        ),
        pytest.param(
            ["run", "surplus"], "extra argument (surplus)", "bpfsvc run", id="a word more"
        ),
        pytest.param(
            ["run", "--max-services", "many"],
            "'many' is not a valid integer",
            "bpfsvc run",
            id="a number that is none",
        ),
        pytest.param(
            ["run", "--max-frontends", "0"], "'--max-frontends'", "bpfsvc run", id="a size of zero"
        ),
        pytest.param(
            ["run", "--tc-priority", "70000"], "70000 is not", "bpfsvc run", id="a large priority"
        ),
        pytest.param(["maps"], "Missing command", "bpfsvc maps", id="no command after maps"),
        pytest.param(["maps", "frob"], "No such command 'frob'", "bpfsvc maps", id="nor this one"),
        pytest.param(
            ["maps", "dump", "--frob"],
            "No such option",
            "bpfsvc maps dump",
            id="an unknown flag of maps dump",
        ),
        pytest.param(
            ["maps", "dump", "-o", "xml"],
            "'xml' is not one of 'table', 'json', 'yaml'",
            "bpfsvc maps dump",
            id="an unknown format",
        ),
        pytest.param(
            ["status", "--healthz-bind-address", "here"],
            "'here' is not ADDRESS:PORT",
            "bpfsvc status",
            id="an address that is none",
        ),
        pytest.param(
            ["status", "now"], "Got unexpected extra argument (now)", "bpfsvc status", id="too much"
        ),
    ],
)
def test_a_wrong_command_line_is_one_line_and_a_hint(
    arguments: list[str], message: str, see: str
) -> None:
    done = bpfsvc(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert error.startswith("Error: ")
    assert message in error
    assert hint == f"Hint: see {see} --help"


def test_nothing_loaded_is_a_clear_error(tmp_path: Path) -> None:
    done = bpfsvc("maps", "dump", "--pin-root", str(tmp_path))
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"Error: bpfsvc is not loaded: nothing is pinned at {tmp_path}/current",
        "Hint: start it with: bpfsvc run, or name another place with --pin-root",
    ]


def test_a_node_without_bpfsvc_is_not_healthy(tmp_path: Path) -> None:
    reason = f"bpfsvc is not loaded: nothing is pinned at {tmp_path}/current"
    done = bpfsvc("status", "--pin-root", str(tmp_path))
    assert (done.exit_code, done.stdout) == (1, f"UNHEALTHY: {reason}\n")
    done = bpfsvc("status", "--pin-root", str(tmp_path), "-o", "json")
    assert json.loads(done.stdout) == {"well": False, "reasons": [reason]}


def test_a_pin_root_with_other_contents_is_named(tmp_path: Path) -> None:
    (tmp_path / "current" / "maps").mkdir(parents=True)
    (tmp_path / "current" / "maps" / "layout").touch()
    done = bpfsvc("maps", "dump", "--pin-root", str(tmp_path))
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: cannot read the pins at {tmp_path}: ")


def test_without_privileges_the_hint_says_which_are_needed(tmp_path: Path) -> None:
    (tmp_path / "current").mkdir()
    (tmp_path / "current").chmod(0)
    as_nobody = f"import os; os.setuid({os.getuid() or 65534});"
    # All is imported before: nobody cannot read a checkout that lies in root's home.
    imports = "from bpfsvc.cli.main import main; from bpfsvc.cli import maps;"
    script = f"{imports} {as_nobody} main(prog_name='bpfsvc')"
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    command = [sys.executable, "-c", script, "maps", "dump", "--pin-root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"Error: cannot read the pins at {tmp_path}: Permission denied",
        "Hint: run as root (or with CAP_BPF and CAP_NET_ADMIN)",
    ]


def test_a_traceback_is_for_those_who_ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise KernelError("no", "yes")

    monkeypatch.setattr("bpfsvc.cli.maps.choose", refuse)
    monkeypatch.setattr("bpfsvc.inspect.reader.Pinned", lambda _: Nothing())
    plain = bpfsvc("maps", "dump", "--pin-root", str(tmp_path))
    assert (plain.exit_code, plain.stderr) == (1, "Error: no\nHint: yes\n")
    loud = bpfsvc("--debug", "maps", "dump", "--pin-root", str(tmp_path))
    assert loud.exit_code == 1
    assert loud.stderr.startswith("Traceback")
    assert loud.stderr.endswith("Error: no\nHint: yes\n")


class Nothing:
    layout = None

    def close(self) -> None:
        """Hold nothing."""


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """As ``bpfsvc maps dump | head``: nothing on standard error."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "bpfsvc"]
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert done.stderr == b""
    assert done.returncode == 141


def test_a_command_that_an_image_leaves_out_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("bpfsvc.cli.main.import_module", missing)
    done = CliRunner().invoke(main, ["bench", "--quick"], prog_name="bpfsvc")
    assert done.exit_code == 1
    assert done.output.splitlines() == [
        "Error: the command bench is not part of this image",
        "Hint: install the package: pip install 'bpfsvc[bench]'",
    ]
