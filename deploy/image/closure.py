"""Collect what bpfsvc needs of a file system, and nothing else, into an empty directory.

What is installed with bcc and Python is several times what is ever read of it. Which part that is,
is found: modules by importing all that the product imports, shared libraries by asking the dynamic
loader. What is listed is what has to be known beforehand: programs, and parts of large packages
that serve others.

The records of the Debian packages that files came from are kept, so that scanners find them, and
so are their licences.

Usage: ENVIRONMENT/bin/python closure.py DIRECTORY
"""

from __future__ import annotations

import importlib
import pkgutil
import py_compile
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

PROGRAMS = (
    "python3",
    "sh",
    "env",
    "mount",
    "ipset",
    "ipvsadm",
    "nft",
    *(
        f"{name}{flavour}{verb}"
        for name in ("iptables", "ip6tables")
        for flavour in ("", "-nft", "-legacy")
        for verb in ("", "-save", "-restore")
    ),
)
"""A shell and ``mount`` are for the init container, others for ``bpfsvc cleanup --kube-proxy``."""

ETC = ("passwd", "group", "nsswitch.conf", "debian_version", "os-release", "protocols")

LATE = ("bcc", "encodings.idna")
"""What is imported only when it is used."""

KUBECONFIG = """
{apiVersion: v1, kind: Config, current-context: one, users: [{name: one, user: {token: none}}],
contexts: [{name: one, context: {cluster: one, user: one}}],
clusters: [{name: one, cluster: {server: "https://localhost"}}]}
"""

NOT_FOR_NODES = ("bpfsvc/lab", "bpfsvc/demo", "bpfsvc/bench")

OUT = (
    *NOT_FOR_NODES,
    *(f"kubernetes/{part}" for part in ("aio", "client/api", "client/models", "e2e_test", "test")),
    *("*.pyi", "*.pyx", "*.pxd", "__pycache__", "tests", "py.typed"),
)
"""What is left out of Python packages, unless something imports it."""

OUT_OF_LIBRARY = (
    *("__pycache__", "config-*", "curses", "dbm", "distutils", "ensurepip", "idlelib", "lib2to3"),
    *("pydoc_data", "sqlite3", "test", "tkinter", "turtledemo", "unittest", "venv"),
    *("_crypt.*", "_curses*", "_dbm.*", "_sqlite3.*", "_test*", "_tkinter*", "_xx*", "audioop.*"),
    *("nis.*", "ossaudiodev.*", "readline.*", "xx*"),
)
"""What is left out of Python's own library, unless something imports it."""


class Tree:
    """The directory that is filled. Paths are those of the system that it is filled from."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.files: set[Path] = set()

    def place(self, path: Path) -> Path:
        """Give where a path of the system is in the directory."""
        return self.target / path.relative_to("/")

    def frame(self) -> None:
        """Make what is mounted over or written to, and the links of a merged /usr."""
        for name in ("dev", "etc", "proc", "root", "run", "sys", "usr/bin", "usr/lib", "usr/sbin"):
            (self.target / name).mkdir(parents=True)
        (self.target / "tmp").mkdir()
        (self.target / "tmp").chmod(0o1777)
        for link in (Path("/bin"), Path("/lib"), Path("/lib64"), Path("/sbin")):
            if link.is_symlink():
                self.place(link).symlink_to(link.readlink())
                self.place(link.resolve()).mkdir(exist_ok=True)

    def add(self, path: Path) -> None:
        """Copy a file; of a symbolic link, every step of the way."""
        path = path.parent.resolve() / path.name
        if path in self.files:
            return
        self.files.add(path)
        self.place(path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, self.place(path), follow_symlinks=False)
        if path.is_symlink():
            self.add(path.parent / path.readlink())

    def add_python(self, paths: Iterable[Path], imported: set[Path], out: Iterable[str]) -> None:
        """Copy files of Python packages, but for what matches ``out`` and is not imported."""
        for path in paths:
            wanted = path in imported or not any(matches(path, pattern) for pattern in out)
            if wanted and not path.is_dir():
                self.add(path)

    def compile(self, source: Path) -> None:
        """Put the byte code of a module beside it: nothing can be written where it will run."""
        if source.suffix == ".py" and source in self.files:
            py_compile.compile(
                str(self.place(source)),
                dfile=str(source),
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )


def matches(path: Path, pattern: str) -> bool:
    """Whether a path, or a directory that it is in, is what ``pattern`` names."""
    return path.match(pattern) or any(parent.match(pattern) for parent in path.parents)


class Witness(PathFinder):
    """Notes every file that is imported; finds none itself. (``sys.modules`` forgets.)"""

    files: ClassVar[set[Path]] = set()

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> None:
        """Note where a module is found."""
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.origin:
            cls.files.add(Path(spec.origin).resolve())


def import_all() -> set[Path]:
    """Import every module of the product; give the files of all that came with them."""
    import bpfsvc

    files = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    before = {Path(file).resolve() for file in files if file}
    sys.meta_path.insert(0, Witness)
    for name in (*module_names(bpfsvc), *LATE):
        importlib.import_module(name)
    talk_to_servers()
    return before | Witness.files


def module_names(package: ModuleType) -> Iterator[str]:
    """Give the modules below a package, but for what is not for nodes."""
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if found.name.replace(".", "/") in NOT_FOR_NODES or found.name.endswith(".__main__"):
            continue
        yield found.name
        if found.ispkg:
            yield from module_names(importlib.import_module(found.name))


def talk_to_servers() -> None:
    """Prepare to talk with an API server in each way, for what that imports."""
    from bpfsvc.apiserver.connection import connect
    from bpfsvc.sources import SourceUnavailable

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(KUBECONFIG)
        file.flush()
        connect(Path(file.name), user_agent="none")
    with suppress(SourceUnavailable):  # this is no pod
        connect(None, user_agent="none")


def programs(tree: Tree) -> None:
    """Keep the programs and what the C library reads of /etc."""
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/sbin:/usr/bin")
        if found is None:
            raise SystemExit(f"{name} is not installed")
        tree.add(Path(found))
    for plugin in Path("/usr/lib").glob("*/xtables/*.so"):
        tree.add(plugin)
    for name in ETC:
        tree.add(Path("/etc", name))


def modules(tree: Tree, imported: set[Path]) -> None:
    """Keep Python's library, bcc, and each distribution of which something is imported."""
    library = Path(sysconfig.get_path("stdlib"))
    tree.add_python(library.rglob("*"), imported, OUT_OF_LIBRARY)
    environment = Path(sys.prefix)
    for name in ("pyvenv.cfg", "bin/python3", "bin/python", "bin/bpfsvc"):
        tree.add(environment / name)
    (bcc,) = {path.parent for path in imported if path.match("bcc/__init__.py")}
    tree.add_python(bcc.rglob("*"), imported, OUT)
    site = Path(sysconfig.get_path("purelib"))
    for each in distributions(path=[str(site)]):
        files = [site / file for file in each.files or () if ".." not in file.parts]
        if imported.intersection(files):
            tree.add_python((file for file in files if file.exists()), imported, OUT)


def libraries(tree: Tree) -> None:
    """Keep the shared libraries that programs, extensions and libraries ask for."""
    (bcc,) = Path("/usr/lib").glob("*/libbcc.so.0")
    tree.add(bcc)
    binaries = [str(path) for path in tree.files if not path.is_symlink() and is_binary(path)]
    told = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False)
    for line in told.stdout.splitlines():
        if "not found" in line:
            raise SystemExit(f"a shared library is missing: {line.strip()}")
        # "name => /path (address)", "/path (address)"; "/path:" is what is asked for.
        for word in line.split():
            if word.startswith("/") and not word.endswith(":"):
                tree.add(Path(word))


def is_binary(path: Path) -> bool:
    """Whether a file is one for the dynamic loader."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def records(tree: Tree) -> None:
    """Keep what dpkg knows of the packages that files came from, and their licences."""
    # dpkg knows files of a merged /usr by the names they had before.
    paths = {str(path).removeprefix(prefix) for path in tree.files for prefix in ("", "/usr")}
    told = subprocess.run(
        ["dpkg-query", "--search", *sorted(paths)],
        capture_output=True,
        text=True,
        check=False,  # some are of no package
    )
    # "name[:architecture]: /path", and lines about diversions.
    names = {line.split(":")[0] for line in told.stdout.splitlines()}
    directory = tree.target / "var/lib/dpkg/status.d"
    directory.mkdir(parents=True)
    for stanza in Path("/var/lib/dpkg/status").read_text().split("\n\n"):
        name = stanza.partition("\n")[0].removeprefix("Package: ")
        if name in names:
            (directory / name).write_text(stanza.strip() + "\n")
            tree.add(Path("/usr/share/doc", name, "copyright"))


def main(target: Path) -> None:
    """Fill ``target``."""
    imported = import_all()
    tree = Tree(target)
    tree.frame()
    programs(tree)
    modules(tree, imported)
    libraries(tree)
    for source in imported:
        tree.compile(source)
    records(tree)
    subprocess.run(["ldconfig", "-r", str(target)], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
