"""Collect the files that bpfsvc needs, and no others, into an empty directory; if it is asked for,
into another one what its compiler and login plugins need beside them.

The packages of bcc and Python are several times larger than the files that are read. This program
finds those: modules by importing all that the product imports, shared libraries by the dynamic
loader. Only programs, and unused parts of large packages, are listed by hand.

The records of the files' Debian packages are kept for scanners, and so are their licences.

Usage: ENVIRONMENT/bin/python closure.py DIRECTORY [COMPILER]
"""

from __future__ import annotations

import importlib
import os
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
"""All but Python are for ``bpfsvc cleanup --kube-proxy``. There is no shell."""

ETC = ("passwd", "group", "nsswitch.conf", "debian_version", "os-release", "protocols")

LATE = ("encodings.idna",)
"""Modules that are imported only when they are used."""

COMPILER = "bcc"
"""The module that loads LLVM. Programs that are compiled when the image is built need none."""

PACKAGES = os.environ.get("PACKAGES", "locked")
LOCK = Path("/packages.lock")
"""What ``deploy/image/lock.py`` has written: Debian packages in their versions."""

PROGRAMS_COMPILED = Path("/usr/share/bpfsvc/programs")
"""What ``python -m bpfsvc.datapath.loader.shipped`` has written."""

KUBECONFIG = """
{apiVersion: v1, kind: Config, current-context: one, users: [{name: one, user: {token: none}}],
contexts: [{name: one, context: {cluster: one, user: one}}],
clusters: [{name: one, cluster: {server: "https://localhost"}}]}
"""

NOT_FOR_NODES = ("bpfsvc/devtools", "bpfsvc/cli/bench")
"""Rooms and modules of the product that are in no image; ``bpfsvc bench`` says so there."""

LOGIN_PLUGINS = "bpfsvc/kube/client/plugin"
"""The module that loads the package ``kubernetes``, 16 MB. Pods log in by their ServiceAccount."""

OUT = (
    *NOT_FOR_NODES,
    *(f"{module}.py" for module in (*NOT_FOR_NODES, LOGIN_PLUGINS)),
    *(f"kubernetes/{part}" for part in ("aio", "client/api", "client/models", "e2e_test", "test")),
    *("*.pyi", "*.pyx", "*.pxd", "__pycache__", "tests", "py.typed"),
)
"""Files omitted from Python packages, unless something imports them."""

OUT_OF_LIBRARY = (
    *("__pycache__", "config-*", "curses", "dbm", "distutils", "ensurepip", "idlelib", "lib2to3"),
    *("pydoc_data", "sqlite3", "test", "tkinter", "turtledemo", "unittest", "venv"),
    *("doctest.py", "mailbox.py", "pickletools.py", "turtle.py", "xmlrpc", "_codecs_*"),
    *("_crypt.*", "_curses*", "_dbm.*", "_sqlite3.*", "_test*", "_tkinter*", "_xx*", "audioop.*"),
    *("nis.*", "ossaudiodev.*", "readline.*", "xx*"),
)
"""Files omitted from Python's own library, unless something imports them."""


class Tree:
    """The directory to fill. Paths are those of the system that the files come from.

    ``beside``: a tree that will be there, too.
    """

    def __init__(self, target: Path, beside: Tree | None = None) -> None:
        self.target = target
        self.files: set[Path] = set()
        self._there = beside.files if beside else self.files

    def place(self, path: Path) -> Path:
        """Return the place of a system's path in the directory."""
        return self.target / path.relative_to("/")

    def frame(self) -> None:
        """Make mount points, writable directories, and the links of a merged /usr."""
        for name in ("dev", "etc", "proc", "root", "run", "sys", "usr/bin", "usr/lib", "usr/sbin"):
            (self.target / name).mkdir(parents=True)
        (self.target / "tmp").mkdir()
        (self.target / "tmp").chmod(0o1777)
        for link in (Path("/bin"), Path("/lib"), Path("/lib64"), Path("/sbin")):
            if link.is_symlink():
                self.place(link).symlink_to(link.readlink())
                self.place(link.resolve()).mkdir(exist_ok=True)

    def add(self, path: Path) -> None:
        """Copy a file; of a symbolic link, all links up to its file, too."""
        path = path.parent.resolve() / path.name
        if path in self.files or path in self._there:
            return
        self.files.add(path)
        self.place(path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, self.place(path), follow_symlinks=False)
        if path.is_symlink():
            self.add(path.parent / path.readlink())

    def add_python(self, paths: Iterable[Path], imported: set[Path], out: Iterable[str]) -> None:
        """Copy files of Python packages, except those that match ``out`` and are not imported."""
        for path in paths:
            wanted = path in imported or not any(matches(path, pattern) for pattern in out)
            if wanted and not path.is_dir():
                self.add(path)

    def compile(self, source: Path) -> None:
        """Write the byte code of a module beside it: the image is read-only when it runs."""
        if source.suffix == ".py" and source in self.files:
            py_compile.compile(
                str(self.place(source)),
                dfile=str(source),
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )


def matches(path: Path, pattern: str) -> bool:
    """True if a path, or one of its parent directories, matches ``pattern``."""
    return path.match(pattern) or any(parent.match(pattern) for parent in path.parents)


class ImportRecorder(PathFinder):
    """Records every file that is imported; finds none itself. (``sys.modules`` may lose some.)"""

    files: ClassVar[set[Path]] = set()

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> None:
        """Record the file of a module."""
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.origin:
            cls.files.add(Path(spec.origin).resolve())


def import_all() -> set[Path]:
    """Import every module of the product but the compiler; return the files of all modules."""
    import bpfsvc

    files = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    before = {Path(file).resolve() for file in files if file}
    sys.meta_path.insert(0, ImportRecorder)
    for name in (*module_names(bpfsvc), *LATE):
        importlib.import_module(name)
    import_connections()
    return before | ImportRecorder.files


def module_names(package: ModuleType) -> Iterator[str]:
    """Yield the names of modules below a package, except those that nodes do not need."""
    left_out = (*NOT_FOR_NODES, LOGIN_PLUGINS)
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if module.name.replace(".", "/") in left_out or module.name.endswith(".__main__"):
            continue
        yield module.name
        if module.ispkg:
            yield from module_names(importlib.import_module(module.name))


def import_connections() -> None:
    """Make a connection to an API server in each way, to import what that needs."""
    from bpfsvc.kube.client.connection import connect
    from bpfsvc.kube.source import SourceUnavailable

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(KUBECONFIG)
        file.flush()
        connect(Path(file.name), user_agent="none")
    with suppress(SourceUnavailable):  # not in a pod
        connect(None, user_agent="none")


def programs(tree: Tree) -> None:
    """Copy the programs, and the files of /etc that the C library reads."""
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
    """Copy Python's library, and each distribution with an imported module."""
    library = Path(sysconfig.get_path("stdlib"))
    tree.add_python(library.rglob("*"), imported, OUT_OF_LIBRARY)
    environment = Path(sys.prefix)
    for name in ("pyvenv.cfg", "bin/python3", "bin/python", "bin/bpfsvc"):
        tree.add(environment / name)
    site = Path(sysconfig.get_path("purelib"))
    for each in distributions(path=[str(site)]):
        files = [site / file for file in each.files or () if ".." not in file.parts]
        if imported.intersection(files):
            tree.add_python((file for file in files if file.exists()), imported, OUT)


def libraries(tree: Tree) -> None:
    """Copy the shared libraries that programs, extensions and libraries need."""
    binaries = [str(path) for path in tree.files if not path.is_symlink() and is_binary(path)]
    listed = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False)
    for line in listed.stdout.splitlines():
        if "not found" in line:
            raise SystemExit(f"a shared library is missing: {line.strip()}")
        # "name => /path (address)", "/path (address)"; "/path:" is the examined file.
        for word in line.split():
            if word.startswith("/") and not word.endswith(":"):
                tree.add(Path(word))


def is_binary(path: Path) -> bool:
    """True if a file is one for the dynamic loader."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def records(tree: Tree) -> None:
    """Copy dpkg's records of the files' packages, and their licences."""
    # dpkg has files of a merged /usr under their former names.
    paths = {str(path).removeprefix(prefix) for path in tree.files for prefix in ("", "/usr")}
    listed = subprocess.run(
        ["dpkg-query", "--search", *sorted(paths)],
        capture_output=True,
        text=True,
        check=False,  # some files belong to no package
    )
    # "name[:architecture]: /path", and lines about diversions.
    names = {line.split(":")[0] for line in listed.stdout.splitlines()}
    locked = {tuple(line.split()[1:3]) for line in LOCK.read_text().splitlines()}
    directory = tree.target / "var/lib/dpkg/status.d"
    directory.mkdir(parents=True)
    for stanza in Path("/var/lib/dpkg/status").read_text().split("\n\n"):
        name = stanza.partition("\n")[0].removeprefix("Package: ")
        if name in names:
            version = stanza.partition("\nVersion: ")[2].partition("\n")[0]
            if PACKAGES == "locked" and (name, version) not in locked:
                raise SystemExit(f"{name} {version} is not in {LOCK}: run deploy/image/lock.py")
            (directory / name).write_text(stanza.strip() + "\n")
            tree.add(Path("/usr/share/doc", name, "copyright"))


def image(target: Path) -> Tree:
    """Fill ``target`` with what runs on nodes."""
    imported = import_all()
    if COMPILER in sys.modules:
        raise SystemExit(f"{COMPILER} is imported by a module that nodes need")
    tree = Tree(target)
    tree.frame()
    programs(tree)
    modules(tree, imported)
    libraries(tree)
    for compiled in PROGRAMS_COMPILED.iterdir():
        tree.add(compiled)
    for source in sorted(imported):
        tree.compile(source)
    records(tree)
    subprocess.run(["ldconfig", "-r", str(target)], check=True)
    return tree


def compiler(target: Path, beside: Tree) -> None:
    """Fill ``target`` with bcc, LLVM and login plugins; the loader finds the libraries there."""
    importlib.import_module(COMPILER)
    importlib.import_module(LOGIN_PLUGINS.replace("/", "."))
    imported = ImportRecorder.files
    (bcc,) = {path.parent for path in imported if path.match(f"{COMPILER}/__init__.py")}
    tree = Tree(target, beside)
    tree.add_python(bcc.rglob("*"), imported, OUT)
    modules(tree, imported)
    (library,) = Path("/usr/lib").glob("*/libbcc.so.0")
    tree.add(library)
    libraries(tree)
    for source in sorted(imported):
        tree.compile(source)
    records(tree)


if __name__ == "__main__":
    main = image(Path(sys.argv[1]))
    for more in sys.argv[2:]:
        compiler(Path(more), main)
