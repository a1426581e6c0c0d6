"""One network namespace: its sockets, its processes, its settings.

Everything is done by moving the calling thread into the namespace for a moment (``entered``): a
socket, a netlink connection or a child process made there stays there. That takes microseconds,
where a helper process for each namespace would take 20 ms of CPU each.

A namespace that stands for a machine with processes of its own also has a cgroup; its sockets are
made by a worker process in that cgroup (see ``worker``), started when first needed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from bpfsvc import syscalls
from bpfsvc.errors import BpfsvcError
from bpfsvc.lab import sandbox, worker
from bpfsvc.lab.load import Kind, Load, Spec
from bpfsvc.lab.patience import stretched

_OWN = "/proc/thread-self/ns/net"
_PROC_SYS = Path("/proc/sys")

SETTINGS = {
    # Addresses are usable at once, and nothing is sent that no test asked for.
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/default/dad_transmits": "0",
    "net/ipv6/conf/default/router_solicitations": "0",
    "net/ipv6/conf/default/accept_ra": "0",
    # Full-rate load would otherwise use up the client's ports within seconds.
    "net/ipv4/tcp_tw_reuse": "1",
}

Command = Sequence[str | os.PathLike[str]]
Process = subprocess.Popen[bytes]
STREAM = socket.SOCK_STREAM
Socket = socket.socket  # the class body has a method called socket


class LabError(BpfsvcError):
    """The lab was asked for something it cannot build or run."""


class Namespace:
    """A network namespace, at ``/run/netns/<prefix><name>`` as long as it is open.

    ``cgroup``: the directory its processes and sockets belong to; None leaves them in the caller's.
    """

    def __init__(self, name: str, *, prefix: str = "", cgroup: Path | None = None) -> None:
        sandbox.require()
        self.name = name
        self.prefix = prefix
        self.cgroup = cgroup
        self.path = sandbox.NETNS_ROOT / (prefix + name)
        self.children: list[Process] = []
        self._netlink: IPRoute | None = None
        self._line: Socket | None = None
        self._line_lock = threading.Lock()
        try:
            self.path.touch(exist_ok=False)
        except FileExistsError:
            raise LabError(f"a namespace named {prefix + name!r} exists already") from None
        if cgroup is not None:
            cgroup.mkdir(parents=True)
        with _restored():
            syscalls.unshare(syscalls.CLONE_NEWNET)
            syscalls.mount(_OWN, str(self.path), None, syscalls.MS_BIND)
            self.fd = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
            sandbox.loopback_up()
            for key, value in SETTINGS.items():
                (_PROC_SYS / key).write_text(value)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move the calling thread into the namespace, and back at the end."""
        with _restored():
            syscalls.setns(self.fd, syscalls.CLONE_NEWNET)
            yield

    # -- settings and interfaces --------------------------------------------------------------

    @property
    def netlink(self) -> IPRoute:
        """The rtnetlink connection, opened when first used; for one thread at a time."""
        if self._netlink is None:
            with self.entered():
                self._netlink = IPRoute()
        return self._netlink

    def sysctl(self, key: str, value: object = None) -> str:
        """Read, after writing ``value`` if given, a setting such as ``net.ipv4.ip_forward``.

        Parts may be separated by ``/`` instead where a name contains a dot.
        """
        file = _PROC_SYS / (key if "/" in key else key.replace(".", "/"))
        with self.entered():
            if value is not None:
                file.write_text(str(value))
            return file.read_text().strip()

    def index(self, interface: str) -> int:
        """Give an interface's index; ``OSError`` if there is none of that name."""
        with self.entered():
            return socket.if_nametoindex(interface)

    def interfaces(self) -> list[str]:
        """Give the names of the interfaces."""
        with self.entered():
            return [name for _, name in socket.if_nameindex()]

    # -- sockets and processes ----------------------------------------------------------------

    def socket(self, family: int, kind: int = STREAM, protocol: int = 0) -> Socket:
        """Create a socket in the namespace (and cgroup)."""
        return self.sockets(1, family, kind, protocol)[0]

    def sockets(
        self, count: int, family: int, kind: int = STREAM, protocol: int = 0
    ) -> list[Socket]:
        """Create many sockets at once; cheaper than one by one where there is a cgroup."""
        if self.cgroup is None:
            with self.entered():
                return [socket.socket(family, kind, protocol) for _ in range(count)]
        made: list[Socket] = []
        while len(made) < count:
            portion = min(count - len(made), worker.LIMIT)
            with self._line_lock:
                made += self._from_worker(portion, family, kind, protocol)
        return made

    def _from_worker(self, count: int, *kind: int) -> list[Socket]:
        if self._line is None:
            self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self.popen(script("worker", str(theirs.fileno())), pass_fds=(theirs.fileno(),))
        self._line.send(json.dumps([*kind, count]).encode())
        answer, descriptors, _, _ = socket.recv_fds(self._line, 64, count)
        if not answer:
            raise LabError(f"the worker of {self.name} has ended")
        if answer != b"+":
            raise OSError(int(answer), os.strerror(int(answer)))
        return [socket.socket(fileno=descriptor) for descriptor in descriptors]

    def popen(self, command: Command, **options: Any) -> Process:
        """Start a process in the namespace (and cgroup); ended with the namespace.

        ``options`` are those of ``subprocess.Popen``, ``preexec_fn`` excepted.
        """
        with self.entered():
            process = subprocess.Popen(command, preexec_fn=self._preparation(), **options)
        self.children = [child for child in self.children if child.returncode is None]
        self.children.append(process)
        return process

    def run(self, command: Command, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and give its output as text; ``LabError`` if it fails."""
        with self.entered():
            done = subprocess.run(
                command,
                preexec_fn=self._preparation(),
                text=True,
                capture_output=True,
                check=False,
                **options,
            )
        if done.returncode != 0:
            words = " ".join(str(word) for word in command)
            raise LabError(
                f"{self.name}: {words} ended with {done.returncode}: {done.stderr.strip()}"
            )
        return done

    def _preparation(self) -> Callable[[], None]:
        procs = None if self.cgroup is None else f"{self.cgroup}/cgroup.procs"
        # The signal comes when the *thread* ends, so that other threads than the main one, which
        # lives as long as the process, must not ask for it. The sandbox's supervisor ends the rest.
        mortal = threading.current_thread() is threading.main_thread()

        def prepare() -> None:
            if procs is not None:
                descriptor = os.open(procs, os.O_WRONLY)
                os.write(descriptor, b"0")
                os.close(descriptor)
            if mortal:
                syscalls.die_with_parent(signal.SIGKILL)

        return prepare

    def serve(self, port: int = 8080, name: str | None = None) -> Process:
        """Start an echo server (see ``server``) on TCP and UDP, all addresses of both families.

        It listens when this returns. ``name`` (default: the namespace's) is what it answers with.
        """
        listening: list[Socket] = []
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            for family, anywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
                made = self.socket(family, kind)
                listening.append(made)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                made.bind((anywhere, port))
                if kind == socket.SOCK_STREAM:
                    made.listen(4096)
        descriptors = [each.fileno() for each in listening]
        words = [name or self.name, *(str(descriptor) for descriptor in descriptors)]
        process = self.popen(script("server", *words), pass_fds=descriptors)
        for each in listening:
            each.close()
        return process

    def load(self, kind: Kind, address: str, port: int = 8080, **spec: Any) -> Load:
        """Start a load (see ``load``) from here; ``spec`` are further fields of ``load.Spec``."""
        wanted = Spec(kind=kind, address=address, port=port, **spec)
        wanted = dataclasses.replace(wanted, timeout=stretched(wanted.timeout))
        command = script("pressure", json.dumps(dataclasses.asdict(wanted)))
        return Load(self.popen(command, stdout=subprocess.PIPE))

    def end(self, process: Process) -> None:
        """End one process that was started here."""
        process.kill()
        process.wait()
        if process in self.children:
            self.children.remove(process)

    def close(self) -> None:
        """End the processes started here and give up the namespace and its cgroup."""
        for process in self.children:
            process.kill()
        for process in self.children:
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self.children.clear()
        if self._line is not None:
            self._line.close()
        if self._netlink is not None:
            self._netlink.close()
        if self.cgroup is not None:
            # A process may have started others (an agent its loader): they belong here too.
            sandbox.end_members(self.cgroup)
            self.cgroup.rmdir()
        syscalls.unmount(str(self.path))
        self.path.unlink()
        os.close(self.fd)


def script(module: str, *words: str) -> list[str]:
    """Give the command that runs ``main`` of a module of this package, without site-packages.

    It starts in 20 ms, where the packages of a virtual environment would double that. ^C in a
    terminal goes to it too; it is for those who started it to end it.
    """
    root = str(Path(__file__).parents[2])
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"sys.path.append({root!r}); from bpfsvc.lab.{module} import main; "
        "main(sys.argv[1:])"
    )
    return [sys.executable, "-I", "-S", "-c", code, *words]


@contextmanager
def _restored() -> Iterator[None]:
    home = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        syscalls.setns(home, syscalls.CLONE_NEWNET)
        os.close(home)
