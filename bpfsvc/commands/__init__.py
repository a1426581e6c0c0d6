"""The command line. A command's module is imported when it is run, and not before.

The agent is a command like the others, and its memory counts: it must not carry what only a table
or a document needs. So the one-line descriptions stand here, where ``--help`` finds them without
importing anything.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

import click

from bpfsvc import __version__
from bpfsvc.errors import BpfsvcError


class LazyGroup(click.Group):
    """A group whose commands are named by their modules.

    ``lazy``: name -> (module, description). The command is the module's attribute of that name.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Give the names in the order of the table."""
        return [*self._lazy]

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        """Import the one command that is asked for."""
        if cmd_name not in self._lazy:
            return None
        command: click.Command = getattr(import_module(self._lazy[cmd_name][0]), cmd_name)
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """Describe the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the commands there are when an unknown one is asked for."""
        if args and not args[0].startswith("-") and args[0] not in self._lazy:
            ctx.fail(f"No such command {args[0]!r}; the commands are: {', '.join(self._lazy)}.")
        return super().resolve_command(ctx, args)


class ErrorPrinter(LazyGroup):
    """The outermost group: every failure becomes one line, and one more with the way out."""

    def main(self, *args: Any, **more: Any) -> NoReturn:
        """Run and exit: 0, 1 for what failed, 2 for what was asked wrongly."""
        try:
            status = super().main(*args, **{**more, "standalone_mode": False})
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else self.name
            _complain(error.format_message(), f"see {path} --help")
            status = error.exit_code
        except click.ClickException as error:
            _complain(error.format_message())
            status = error.exit_code
        except click.Abort:
            _complain("interrupted")
            status = 130
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error for people is printed as one."""
        try:
            return super().invoke(ctx)
        except BpfsvcError as error:
            if ctx.params["debug"]:
                traceback.print_exc()
            _complain(error.message, error.hint)
            ctx.exit(error.exit_code)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except Exception as error:
            if ctx.params["debug"]:
                raise
            _complain(
                f"a fault in bpfsvc itself: {type(error).__name__}: {error}",
                "run it again with --debug before the command, and report what it prints",
            )
            ctx.exit(70)


def _complain(message: str, hint: str = "") -> None:
    click.echo(f"Error: {' '.join(message.split())}", err=True)
    if hint:
        click.echo(f"Hint: {hint}", err=True)


COMMANDS = {
    "run": ("bpfsvc.commands.run", "Balance Services on this node until told to stop."),
    "status": ("bpfsvc.commands.status", "Say in ten lines whether this node is well."),
    "maps": ("bpfsvc.commands.maps", "Look into the kernel's maps."),
    "explain": (
        "bpfsvc.commands.explain",
        "Tell what becomes of the first packet of a connection, and why.",
    ),
    "doctor": (
        "bpfsvc.commands.doctor",
        "Look whether this node is fit, and what stands beside.",
    ),
    "cleanup": (
        "bpfsvc.commands.cleanup",
        "Remove what an agent that no longer runs has left in the kernel.",
    ),
    "bench": ("bpfsvc.commands.bench", "Measure bpfsvc and its rivals, in labs on this machine."),
}
"""Name -> module, description."""


@click.group(
    name="bpfsvc",
    cls=ErrorPrinter,
    lazy=COMMANDS,
    invoke_without_command=True,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--debug", is_flag=True, help="Print the traceback of an error too.")
@click.version_option(__version__, message="%(prog)s %(version)s", prog_name="bpfsvc")
@click.pass_context
def main(ctx: click.Context, debug: bool) -> None:  # noqa: ARG001  ErrorPrinter reads it
    """Kubernetes Services by eBPF, in place of kube-proxy, beside any CNI."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
