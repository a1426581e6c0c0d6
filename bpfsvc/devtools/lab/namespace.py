"""A network namespace of a lab: its sockets and its processes.

A namespace that represents a machine with processes also has a cgroup; a worker process in that
cgroup (see ``worker``) makes its sockets. It is started when first needed.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bpfsvc.base import syscalls
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.lab import sandbox, worker
from bpfsvc.devtools.lab.load import Kind, Load, Spec
from bpfsvc.devtools.lab.netns import NetworkNamespace
from bpfsvc.devtools.lab.patience import stretched

Command = Sequence[str | os.PathLike[str]]
Process = subprocess.Popen[bytes]
STREAM = socket.SOCK_STREAM
Socket = socket.socket  # the class body has a method called socket


class LabError(BpfsvcError):
    """The lab cannot carry out a request."""


class Namespace(NetworkNamespace):
    """A network namespace, at ``/run/netns/<prefix><name>`` as long as it is open.

    ``cgroup``: the directory its processes and sockets belong to; None: the caller's.
    """

    def __init__(self, name: str, *, prefix: str = "", cgroup: Path | None = None) -> None:
        sandbox.require()
        try:
            super().__init__(name, prefix=prefix, make=True)
        except FileExistsError:
            raise LabError(f"a namespace named {prefix + name!r} exists already") from None
        self.cgroup = cgroup
        self.children: list[Process] = []
        self._line: Socket | None = None
        self._line_lock = threading.Lock()
        if cgroup is not None:
            cgroup.mkdir(parents=True)

    # -- sockets and processes ----------------------------------------------------------------

    def socket(self, family: int, kind: int = STREAM, protocol: int = 0) -> Socket:
        """Create a socket in the namespace (and cgroup)."""
        return self.sockets(1, family, kind, protocol)[0]

    def sockets(
        self, count: int, family: int, kind: int = STREAM, protocol: int = 0
    ) -> list[Socket]:
        """Create many sockets at once; cheaper than single calls where there is a cgroup."""
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
                self.popen(script("lab.worker", str(theirs.fileno())), pass_fds=(theirs.fileno(),))
        self._line.send(json.dumps([*kind, count]).encode())
        answer, descriptors, _, _ = socket.recv_fds(self._line, 64, count)
        if not answer:
            raise LabError(f"the worker of {self.name} has ended")
        if answer != b"+":
            raise OSError(int(answer), os.strerror(int(answer)))
        return [socket.socket(fileno=descriptor) for descriptor in descriptors]

    def popen(self, command: Command, **options: Any) -> Process:
        """Start a process in the namespace (and cgroup); ended with the namespace.

        ``options``: for ``subprocess.Popen``, without ``preexec_fn``.
        """
        with self.entered():
            process = subprocess.Popen(command, preexec_fn=self._preparation(), **options)
        self.children = [child for child in self.children if child.returncode is None]
        self.children.append(process)
        return process

    def run(self, command: Command, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and return its output as text; ``LabError`` if it fails."""
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
        # The kernel sends the signal when the *thread* ends, so only the main thread, which lives
        # as long as the process, may request it. The sandbox's supervisor ends the rest.
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

        It listens when this returns. It answers with ``name`` (default: the namespace's).
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
        descriptors = [listener.fileno() for listener in listening]
        words = [name or self.name, *(str(descriptor) for descriptor in descriptors)]
        process = self.popen(script("lab.server", *words), pass_fds=descriptors)
        for listener in listening:
            listener.close()
        return process

    def load(self, kind: Kind, address: str, port: int = 8080, **spec: Any) -> Load:
        """Start a load (see ``load``) from here; ``spec`` are further fields of ``load.Spec``."""
        wanted = Spec(kind=kind, address=address, port=port, **spec)
        wanted = dataclasses.replace(wanted, timeout=stretched(wanted.timeout))
        command = script("lab.pressure", json.dumps(dataclasses.asdict(wanted)))
        process = self.popen(command, stdout=subprocess.PIPE)
        return Load(process, f"{kind} from {self.name} to {address} port {port}")

    def end(self, process: Process) -> None:
        """End one process that was started here."""
        process.kill()
        process.wait()
        if process in self.children:
            self.children.remove(process)

    def close(self) -> None:
        """End the processes started here and remove the namespace and its cgroup."""
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
        if self.cgroup is not None:
            # A process may have started others (an agent its loader): they belong here too.
            sandbox.end_members(self.cgroup)
            self.cgroup.rmdir()
        super().close()


def script(module: str, *words: str) -> list[str]:
    """Return the command that runs ``main`` of a module of ``devtools``, without site-packages.

    It starts in 20 ms; the packages of a virtual environment would double that. It ignores ^C in a
    terminal: the process that started it ends it.
    """
    root = str(Path(__file__).parents[3])
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"sys.path.append({root!r}); from bpfsvc.devtools.{module} import main; "
        "main(sys.argv[1:])"
    )
    return [sys.executable, "-I", "-S", "-c", code, *words]
