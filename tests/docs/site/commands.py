"""docs/commands.md and the man pages: every command and flag, from click's own description."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator

import click
from click_man.core import generate_man_page

from bpfsvc.cli.main import main
from tests.docs.site.markdown import prose, wrapped

HEAD = """# Commands

<!-- Written by "make reference" from the commands themselves. -->

Every command with its flags, as `bpfsvc COMMAND --help` and `man bpfsvc-COMMAND` show them. An
error is one line that says what is wrong and what to do; the exit status is then 1, or 2 if the
command line or the configuration is wrong. `bpfsvc --debug COMMAND` prints a traceback, too.
[Configuration](configuration.md) explains what the flags of `bpfsvc run` mean, and which fields of
a file they stand for.

The package has these man pages, and files for bash, zsh and fish below `share/` of its environment.
After TAB they offer commands, flags and their words, and the Services, namespaces and maps that the
node has at that moment (as root; others are offered the rest). Where a shell does not find its file
by itself: `source /opt/bpfsvc/share/bash-completion/completions/bpfsvc`.
"""


def commands(context: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the context of every command that is not hidden, parents first."""
    # The settings of the command line: click keeps the names of the help option for good.
    context = context or click.Context(main, info_name="bpfsvc", **main.context_settings)
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command and not command.hidden:
                yield from commands(click.Context(command, context, info_name=name))


def page() -> str:
    """Return the text of docs/commands.md."""
    return "\n".join([HEAD, *(_section(context) for context in commands())]).rstrip() + "\n"


def man_pages() -> dict[str, str]:
    """Return the man pages by the names of their files."""
    return {
        f"{context.command_path.replace(' ', '-')}.1": _man_page(context) for context in commands()
    }


def options(context: click.Context) -> list[tuple[str, str]]:
    """Return the flags of a command as people write them, each with its help."""
    records = (parameter.get_help_record(context) for parameter in context.command.params)
    return [record for record in records if record]


def _section(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path}\n", f"```\n{wrapped(usage, '    ', '')}\n```\n"]
    parts += [f"{wrapped(prose(part))}\n" for part in _paragraphs(command)]
    flags = [
        wrapped(f"`{flag}`: {_with_default(text)}", "  ", "* ") for flag, text in options(context)
    ]
    return "\n".join([*parts, *flags]) + ("\n" if flags else "")


def _with_default(text: str) -> str:
    said, _, default = text.partition("  [default: ")
    return prose(said) + (f" Default: `{default[:-1]}`." if default else "")


def _paragraphs(command: click.Command) -> list[str]:
    return inspect.cleandoc(command.help or "").split("\n\n")


def _man_page(context: click.Context) -> str:
    """Return click-man's page, with the commands of a group that imports them when they are used.

    Date and version are left out: a page that did not change stays the same file.
    """
    command = _in_short(context.command)
    if isinstance(command, click.Group):
        known = {
            name: command.get_command(context, name) for name in command.list_commands(context)
        }
        commands_of = {name: _in_short(sub) for name, sub in known.items() if sub}
        whole = click.Group(command.name, commands_of, short_help=command.short_help)
        whole.params, whole.help = command.params, command.help
        command = whole
    context = click.Context(command, context.parent, info_name=context.info_name)
    text = generate_man_page(context, version="bpfsvc", date="-")
    # A line of prose that begins with a point or an apostrophe would be a request to the formatter.
    lines = (re.sub(r"^(\.(?!(?:TH|SH|B|TP|PP)\b)|')", r"\\&\1", line) for line in text.split("\n"))
    return "\n".join(lines).rstrip().replace('"-" "bpfsvc"', '"" "bpfsvc"') + "\n"


def _in_short(command: click.Command) -> click.Command:
    """Return the command with its first sentence as its short help, which click-man cuts else."""
    short = copy.copy(command)
    short.short_help = re.split(r"(?<=\.)\s", command.help or "", maxsplit=1)[0].rstrip(".")
    return short
