"""The command line. The module of a command is imported only when the command runs.

The agent is a command like the others, and its memory counts: it must not import what only another
command needs. So the one-line descriptions are here, and ``--help`` imports no command.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from bpfsvc import __version__
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.near_misses import meant_text
from bpfsvc.cli.logs import complain, set_up_for_errors


class LazyGroup(click.Group):
    """A group of commands; a command is imported when it is used.

    ``lazy``: name -> (module, description). The command is the module's attribute of that name.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the table."""
        return [*self._lazy]

    def get_command(
        self,
        ctx: click.Context,
        cmd_name: str,
    ) -> click.Command | None:
        """Import a command; return None if there is none of that name."""
        if cmd_name not in self._lazy:
            return None
        module = self._lazy[cmd_name][0]
        try:
            command: click.Command = getattr(import_module(module), cmd_name)
        except ModuleNotFoundError as missing:
            if missing.name != module:
                raise
            if ctx.resilient_parsing:
                return None  # a shell asks what may come next
            raise BpfsvcError(
                f"the command {cmd_name} is not part of this image",
                "install the package: pip install 'bpfsvc[bench]'",
            ) from missing
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """Describe the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the commands with their descriptions, without importing them; and flags."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=text)
            for name, (_, text) in self._lazy.items()
            if name.startswith(incomplete)
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command. An unknown command is an error that lists the known commands."""
        asked = args and not args[0].startswith("-") and not ctx.resilient_parsing
        if asked and args[0] not in self._lazy:
            listed = f"; the commands are: {', '.join(self._lazy)}."
            ctx.fail(f"No such command {args[0]!r}{meant_text(args[0], self._lazy) or listed}")
        return super().resolve_command(ctx, args)


class ErrorPrinter(LazyGroup):
    """The outermost group: every failure becomes one line, and a second one with a hint."""

    def main(self, *args: Any, **more: Any) -> NoReturn:
        """Run and exit: 0, 1 for a failure, 2 for wrong usage."""
        set_up_for_errors(args[0] if args and args[0] else sys.argv[1:])
        try:
            status = super().main(*args, **{**more, "standalone_mode": False})
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else self.name
            complain(error.format_message(), f"see {path} --help")
            status = error.exit_code
        except click.ClickException as error:
            complain(error.format_message())
            status = error.exit_code
        except click.Abort:
            complain("interrupted")
            status = 130
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; print errors for people in one or two lines."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BpfsvcError as error:
            if ctx.params["debug"]:
                traceback.print_exc()
            complain(error.message, error.hint)
            ctx.exit(error.exit_code)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except BrokenPipeError:
            # The reader, such as head, has seen enough. Python would complain at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(128 + signal.SIGPIPE)
        except Exception as error:
            if ctx.params["debug"]:
                raise
            complain(
                f"a bug in bpfsvc: {type(error).__name__}: {error}",
                "run it again with --debug before the command, and report the output",
            )
            ctx.exit(70)


COMMANDS = {
    "run": ("bpfsvc.cli.run", "Run the agent of this node."),
    "status": ("bpfsvc.cli.status", "Show whether this node is healthy, and what it carries."),
    "services": (
        "bpfsvc.cli.services",
        "Show Services, their backends and connections, as ipvsadm does.",
    ),
    "top": ("bpfsvc.cli.top", "Show the busiest Services, again and again."),
    "observe": (
        "bpfsvc.cli.observe",
        "Show what becomes of connections, as it happens.",
    ),
    "maps": ("bpfsvc.cli.maps", "Show the kernel's maps."),
    "history": (
        "bpfsvc.cli.history",
        "Show what has changed in Services, and when.",
    ),
    "explain": (
        "bpfsvc.cli.explain",
        "Show what happens to the first packet of a connection, and why.",
    ),
    "validate": (
        "bpfsvc.cli.validate",
        "Check manifests before they are applied.",
    ),
    "page": ("bpfsvc.cli.page", "Serve the page of this node, for a browser."),
    "doctor": (
        "bpfsvc.cli.doctor",
        "Check whether bpfsvc can run on this node.",
    ),
    "sysdump": (
        "bpfsvc.cli.sysdump",
        "Write what this node knows into one file, for others to look at.",
    ),
    "verify": (
        "bpfsvc.cli.verify",
        "Compare kube-proxy's rules on this node with bpfsvc's maps.",
    ),
    "cleanup": (
        "bpfsvc.cli.cleanup",
        "Remove what an agent that no longer runs left in the kernel.",
    ),
    "bench": ("bpfsvc.cli.bench", "Measure bpfsvc and kube-proxy on testbeds on this machine."),
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
@click.option("--debug", is_flag=True, help="Print tracebacks of errors too.")
@click.option(
    "--end-with-stdin",
    is_flag=True,
    hidden=True,
    help="End as by Ctrl-C when standard input ends.",
)
@click.version_option(__version__, message="%(prog)s %(version)s", prog_name="bpfsvc")
@click.pass_context
def main(
    ctx: click.Context,
    debug: bool,  # noqa: ARG001  ErrorPrinter reads it
    end_with_stdin: bool,
) -> None:
    """Kubernetes Services by eBPF, in place of kube-proxy, beside any CNI."""
    if end_with_stdin:
        import_module("bpfsvc.cli.interrupt").interrupt_with_stdin()
    if ctx.invoked_subcommand is None:
        from bpfsvc.cli.first_look import first_look

        click.echo("\n".join(first_look()))
