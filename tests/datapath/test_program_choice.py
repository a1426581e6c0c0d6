"""Which compiled programs an agent loads: its own, those that came with it, or none of both.

Nothing gets into a kernel here: loading and compiling are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.base.errors import BpfsvcError, SystemUnfit
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader import builder, bytecode
from bpfsvc.datapath.loader.bytecode import Bytecode, Program
from bpfsvc.datapath.loader.bytecode_cache import BytecodeCache
from bpfsvc.datapath.loader.compiler import BCC_MISSING
from bpfsvc.datapath.loader.shipped import ShippedPrograms
from bpfsvc.datapath.loader.source import PLACEHOLDER, load
from bpfsvc.datapath.maps.layout import Layout, MapLayout, Record
from bpfsvc.datapath.maps.pins import PinRoot

SOURCE = load(Sizes(max_services=100, max_connections=1 << 12))
NUMBER = Record((("value", "I"),))

REFUSED = SystemUnfit("this kernel refuses the program gc: Invalid argument", "use another one")


def made(where: str) -> Bytecode:
    """Return a build of one program and one map; the program's name says where it comes from."""
    services = MapLayout("hash", NUMBER, NUMBER, PLACEHOLDER, 0)
    program = Program(where, 3, 0, bytes(8), (), ((4, "max_connections"),))
    return Bytecode(Layout(SOURCE.code_digest, {"services": services}), "GPL", (program,), ())


class Choice:
    """The directories of both kinds of compiled programs, and what came of them."""

    def __init__(self, directory: Path) -> None:
        self.kept, self.came = directory / "cache", directory / "programs"
        self.loaded: list[Bytecode] = []
        self.refused: set[str] = set()
        self.messages: list[str] = []
        self.compiler: Callable[[], bytes] = made("compiled").encode
        self._root = PinRoot(directory / "pins")

    def put(self, directory: Path, build: bytes) -> Path:
        """Write a file for SOURCE into one of the directories."""
        BytecodeCache(directory, SOURCE.code_digest, print).write(build)
        return directory / f"{SOURCE.code_digest}.bytecode"

    def load(self, build: Bytecode, *_: Any) -> None:
        """Stand in for the kernel."""
        if build.programs[0].name in self.refused:
            raise REFUSED
        self.loaded.append(build)

    def make(self) -> str:
        """Do what a start does; return where the programs are from that were loaded."""
        builder.make_build(
            self._root,
            SOURCE,
            self.messages.append,
            cache=BytecodeCache(self.kept, SOURCE.code_digest, self.messages.append),
            shipped=ShippedPrograms(self.came, SOURCE.code_digest),
        )
        (build,) = self.loaded
        return build.programs[0].name


@pytest.fixture
def choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choice:
    choice = Choice(tmp_path)
    monkeypatch.setattr(builder, "load_build", choice.load)
    monkeypatch.setattr(builder, "compile_source", lambda *_: choice.compiler())
    return choice


def no_compiler() -> bytes:
    raise BCC_MISSING


def unwanted() -> bytes:
    raise AssertionError("the compiler was started")


def test_what_came_with_the_image_is_loaded_without_compiling(choice: Choice) -> None:
    """Nothing of it is kept on the node: it is there at every start."""
    choice.put(choice.came, made("came").encode())
    choice.compiler = unwanted
    assert choice.make() == "came"
    assert choice.messages == []
    assert not choice.kept.exists()


def test_sizes_other_than_the_defaults_ask_for_no_compiler(choice: Choice) -> None:
    choice.put(choice.came, made("came").encode())
    choice.compiler = unwanted
    choice.make()
    (build,) = choice.loaded
    assert build.layout.maps["services"].max_entries == 100
    assert build.layout.digest == SOURCE.digest
    assert build.programs[0].code == bytes(4) + (1 << 12).to_bytes(4, "little")


def test_what_this_node_compiled_comes_before_what_came_with_the_image(choice: Choice) -> None:
    """It was compiled because the other did not fit."""
    choice.put(choice.came, made("came").encode())
    choice.put(choice.kept, made("kept").encode())
    assert choice.make() == "kept"
    assert choice.messages == []


def test_without_an_image_the_first_start_compiles_without_a_word(choice: Choice) -> None:
    """As after ``pip install``: there is no directory. The next start has what this one kept."""
    assert choice.make() == "compiled"
    choice.loaded.clear()
    choice.compiler = unwanted
    assert choice.make() == "compiled"
    assert choice.messages == []


def other_sources(choice: Choice) -> None:
    file = choice.put(choice.came, made("came").encode())
    file.rename(file.with_name("0123456789abcdef.bytecode"))


def another_machine(choice: Choice) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bytecode, "machine", lambda: "big-endian")
        choice.put(choice.came, made("came").encode())


def another_version(choice: Choice) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bytecode, "VERSION", [*bytecode.VERSION[:-1], "0.0.1"])
        choice.put(choice.came, made("came").encode())


def damage(choice: Choice) -> None:
    choice.put(choice.came, made("came").encode()[:-1])


def open_to_others(choice: Choice) -> None:
    choice.put(choice.came, made("came").encode())
    choice.came.chmod(0o777)


def refusal(choice: Choice) -> None:
    choice.put(choice.came, made("came").encode())
    choice.refused.add("came")


def nothing_in_it(choice: Choice) -> None:
    choice.came.mkdir()


UNFIT: list[tuple[Callable[[Choice], None], str]] = [
    (other_sources, "has builds of the sources 0123456789abcdef, and these sources are"),
    (another_machine, "is of another machine: big-endian, and this is "),
    (another_version, "was written by another version of bpfsvc: 0.0.1"),
    (damage, "is damaged"),
    (open_to_others, "others may write to"),
    (refusal, f"does not load: {REFUSED.message}"),
    (nothing_in_it, "has no builds, and these sources are"),
]


@pytest.mark.parametrize(("unfit", "reason"), UNFIT, ids=lambda case: getattr(case, "__name__", ""))
def test_what_does_not_fit_is_compiled_and_one_line_says_why(
    choice: Choice, unfit: Callable[[Choice], None], reason: str
) -> None:
    """The files of the image stay as they are, and the node keeps its own."""
    unfit(choice)
    before = sorted(choice.came.iterdir())
    assert choice.make() == "compiled"
    (line,) = choice.messages
    assert line.startswith("compiling anew: ")
    assert str(choice.came) in line
    assert reason in line
    assert sorted(choice.came.iterdir()) == before
    assert choice.put(choice.kept, b"").exists()


@pytest.mark.parametrize(
    ("unfit", "reason"),
    [case for case in UNFIT if case[0] is not refusal],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_without_a_compiler_the_error_says_what_asks_for_one_and_who_has_it(
    choice: Choice, unfit: Callable[[Choice], None], reason: str
) -> None:
    unfit(choice)
    choice.compiler = no_compiler
    with pytest.raises(SystemUnfit) as caught:
        choice.make()
    assert reason in caught.value.message
    assert BCC_MISSING.message in caught.value.message
    assert "-compiler" in caught.value.hint


def test_without_a_compiler_a_refusal_by_the_kernel_is_the_error(choice: Choice) -> None:
    """A compiler would make the same programs again."""
    refusal(choice)
    choice.compiler = no_compiler
    with pytest.raises(BpfsvcError) as caught:
        choice.make()
    assert caught.value is REFUSED


def test_without_bcc_and_without_an_image_the_package_is_named(choice: Choice) -> None:
    choice.compiler = no_compiler
    with pytest.raises(SystemUnfit) as caught:
        choice.make()
    assert caught.value is BCC_MISSING


def test_a_damaged_file_of_the_node_is_removed_where_the_image_has_the_programs(
    choice: Choice,
) -> None:
    choice.put(choice.came, made("came").encode())
    file = choice.put(choice.kept, b"nothing")
    choice.compiler = unwanted
    assert choice.make() == "came"
    assert choice.messages == [f"compiled programs are not used: {file} is damaged"]
    assert not file.exists()


def test_bytecode_says_where_sizes_belong_when_it_is_read_again() -> None:
    build = made("written")
    assert Bytecode.decode(build.encode(), SOURCE.code_digest) == build
    unlike = replace(build, programs=(replace(build.programs[0], sizes=()),))
    assert unlike != build
