"""Every command that a document names can be typed: command, flags and their values exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bpfsvc.cli.main import COMMANDS, main
from tests.docs.test_documents import DOCUMENTS, ROOT

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`(bpfsvc [^`]+)`(?!`)")
_TYPED = re.compile(
    r"(?:^[#$] +|^node +|-- +|^|[(|;&] *|: +)(?:/\S*/)?bpfsvc +"
    rf"((?:--?\w[\w-]*|{'|'.join(COMMANDS)})\b.*)"
)
_PROMPTED = re.compile(r"^[#$] +(?:/\S*/)?bpfsvc +(\S.*)")
_ENDS = {"|", ";", "&&", "||", ">", ">>", "<", ")", "&", ");"}
_GOAL = re.compile(r"(?:^[#$] +|`)make ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)", re.MULTILINE)
_FILE = re.compile(r"(?<![\w/.-])((?:deploy|tests)/[\w/.-]*[\w/])(?![\w*])")


def typed(document: Path) -> Iterator[str]:
    """Yield what stands after the word bpfsvc, on lines of a terminal and as code in a sentence."""
    text = document.read_text()
    for block in _FENCE.findall(text):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if command := _PROMPTED.search(line) or _TYPED.search(line):
                # An explanation may stand to the right.
                yield re.split(r"\s{3,}|\s+#\s", command[1])[0]
    for code in _INLINE.findall(_FENCE.sub("", text)):
        yield " ".join(code.split()).removeprefix("bpfsvc ")


def words(line: str) -> list[str]:
    """Return the words of a command until another one begins; brackets only say "if you like"."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    result = []
    for word in lexer:
        if word in _ENDS:
            break
        bare = word.strip("[]") if re.match(r"\[-|[^\[]*\]$", word) else word
        if bare not in ("...", ""):
            result.append(bare)
    return result


def check(command: click.Command, arguments: list[str], above: click.Context | None = None) -> None:
    """Raise click's ``UsageError`` for what the command does not know."""
    settings = {} if above else main.context_settings
    context = click.Context(command, above, info_name=command.name, **settings)
    values, rest, _ = command.make_parser(context).parse_args(arguments)
    for parameter in command.params:
        value = values.get(parameter.name or "")
        for word in value if isinstance(value, list | tuple) else [value]:
            if (
                isinstance(parameter.type, click.Choice)
                and isinstance(word, str)
                and not word.isupper()
            ):
                parameter.type.convert(word, parameter, context)
    if not isinstance(command, click.Group):
        if rest:
            raise click.UsageError(f"{context.command_path} takes no {' '.join(rest)!r}")
        return
    if rest and not rest[0].isupper():
        below = command.get_command(context, rest[0])
        if below is None:
            raise click.UsageError(f"{context.command_path} has no command {rest[0]!r}")
        check(below, rest[1:], context)


PAGES = [document for document in DOCUMENTS if document.name != "commands.md"]
"""That one is made of the commands themselves."""


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.name)
def test_commands_and_their_flags_exist(document: Path) -> None:
    faults = []
    for line in typed(document):
        try:
            try:
                check(main, words(line))
            except click.BadOptionUsage:
                # A sentence names a flag without its value.
                check(main, [*words(line), "VALUE"])
        except (click.UsageError, ValueError) as error:
            faults.append(f"bpfsvc {line}: {error}")
    assert faults == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("servces", "no command 'servces'"),
        ("services --stat --nonsense", "No such option"),
        ("services -o xml", "is not one of"),
        ("status now", "takes no 'now'"),
        ("maps dump --service", "requires an argument"),
    ],
)
def test_a_command_that_cannot_be_typed_is_seen(line: str, says: str) -> None:
    with pytest.raises(click.UsageError, match=says):
        check(main, words(line))


def test_commands_are_read_from_terminals_and_sentences(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Type `bpfsvc top --once`.\n\n```console\n# bpfsvc doctor      is it fit?\n"
        "$ kubectl exec POD -- bpfsvc maps \\\n    dump\nHint: use: bpfsvc top\n# bpfsvc nonsense\n"
        "node bpfsvc status | head\nbpfsvc made this\n```\n"
    )

    assert [*typed(page)] == [
        "doctor",
        "maps dump",
        "top",
        "nonsense",
        "status | head",
        "top --once",
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_goals_of_make_and_named_files_exist(document: Path) -> None:
    goals = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = document.read_text()
    typed_goals = {goal for line in _GOAL.findall(text) for goal in line.split()[:1]}
    files = {name for name in _FILE.findall(text) if not (ROOT / name).exists()}

    assert typed_goals - goals == set()
    assert files == set()
