"""The load generator counts what happens to its connections, and says why."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster.load.tool import Counts, Job, build, command, read_report

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("load"))


def _load(program: Path, *jobs: Job, seconds: int = 1) -> list[Counts]:
    done = subprocess.run(
        command(program, seconds, jobs), capture_output=True, text=True, check=True, timeout=30
    )
    report = read_report(done.stdout.splitlines())
    assert report.ended
    return list(report.jobs)


@contextmanager
def _server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on 127.0.0.1 that hands each connection to ``serve``; yields its port."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)

    def accept() -> None:
        while True:
            try:
                made = listening.accept()[0]
            except OSError:
                return
            threading.Thread(target=_served, args=(serve, made), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join()


def _served(serve: Callable[[socket.socket], None], made: socket.socket) -> None:
    """A client that ends first, with an answer under way, is no error."""
    with made, suppress(OSError):
        serve(made)


def _answer_all(made: socket.socket) -> None:
    """Every answer in two pieces, as servers may send it."""
    while made.recv(4096):
        made.sendall(_ANSWER)
        made.sendall(b"pod-a")


def _answer_three(made: socket.socket) -> None:
    for _ in range(3):
        made.recv(4096)
        made.sendall(_ANSWER + b"pod-a")


def _say_unready(made: socket.socket) -> None:
    made.recv(4096)
    made.sendall(b"HTTP/1.1 503 no\r\nContent-Length: 5\r\n\r\npod-a")


def test_new_connections_come_at_the_rate_and_held_ones_ask_ten_times_a_second(
    program: Path,
) -> None:
    with _server(_answer_all) as port:
        new, held = _load(
            program,
            Job("connect", "tcp", "127.0.0.1", port, 50),
            Job("hold", "tcp", "127.0.0.1", port, 6),
            seconds=2,
        )
    assert (new.failed, new.cut, held.failed, held.cut) == (0, 0, 0, 0)
    assert 90 <= new.ok <= 101
    assert held.open == 6
    assert 6 * 12 <= held.ok <= 6 * 21
    assert new.backends == {"pod-a": new.ok}


def test_a_held_connection_that_the_server_ends_is_cut_and_opened_again(program: Path) -> None:
    with _server(_answer_three) as port:
        (held,) = _load(program, Job("hold", "tcp", "127.0.0.1", port, 2))
    assert held.failed == 0
    assert held.cut >= 2
    assert set(held.failures) <= {"request closed", "request ECONNRESET", "request EPIPE"}
    assert held.ok >= 3 * held.cut


@pytest.mark.slow
def test_held_connections_end_when_they_are_let_go_and_new_ones_go_on(program: Path) -> None:
    with _server(_answer_all) as port:
        jobs = [
            Job("connect", "tcp", "127.0.0.1", port, 50),
            Job("hold", "tcp", "127.0.0.1", port, 6),
            Job("keep", "tcp", "127.0.0.1", port, 100),
        ]
        with subprocess.Popen(
            command(program, 30, jobs), stdout=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            reports = (read_report([line]) for line in running.stdout if '"jobs"' in line)
            opened = next(report for report in reports if report.jobs[2].open == 100)
            running.send_signal(signal.SIGUSR1)
            ended = next(each for each in reports if not each.jobs[1].open + each.jobs[2].open)
            running.terminate()
    new, held, kept = opened.jobs
    assert held.open == 6
    assert kept.ok >= 100
    assert ended.jobs[0].ok > new.ok
    assert [(job.failed, job.cut) for job in ended.jobs] == [(0, 0)] * 3


def test_a_refused_connection_failed_and_is_not_cut(program: Path) -> None:
    with _server(_answer_all) as port:
        pass  # nobody listens there any more
    new, held = _load(
        program,
        Job("connect", "tcp", "127.0.0.1", port, 20),
        Job("hold", "tcp", "127.0.0.1", port, 1),
    )
    assert new.ok == new.cut == held.ok == held.cut == 0
    assert new.failures == {"connect ECONNREFUSED": new.failed}
    assert 15 <= new.failed <= 21
    assert held.failures == {"connect ECONNREFUSED": held.failed}


def test_an_answer_other_than_200_is_wrong(program: Path) -> None:
    with _server(_say_unready) as port:
        (new,) = _load(program, Job("connect", "tcp", "127.0.0.1", port, 10))
    assert new.ok == 0
    assert new.failures == {"request wrong answer": new.failed}


@pytest.mark.slow
def test_each_datagram_without_an_answer_is_counted(program: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=_every_second_one, args=(server,), daemon=True)
        thread.start()
        (new,) = _load(program, Job("connect", "udp", "127.0.0.1", server.getsockname()[1], 10))
        server.sendto(b"end", server.getsockname())
        thread.join()
    assert new.cut == 0
    assert new.ok >= 4
    assert new.failures == {"request timeout": new.failed}
    assert new.failed >= 4


def _every_second_one(server: socket.socket) -> None:
    for number in range(1 << 16):
        data, client = server.recvfrom(4096)
        if data == b"end":
            return
        if number % 2:
            server.sendto(b"pod-a", client)


def test_the_first_failures_of_a_kind_are_told_with_time_and_socket(program: Path) -> None:
    with _server(_answer_three) as port:
        job = Job("hold", "tcp", "127.0.0.1", port, 1)
        done = subprocess.run(
            command(program, 1, [job]), capture_output=True, text=True, check=True, timeout=30
        )
    first = read_report(done.stdout.splitlines()).events[0]
    assert " s) cut: request " in first
    assert "127.0.0.1:" in first
    assert "to pod-a" in first
    assert first.endswith(str(job))


def test_a_job_that_is_no_job_is_refused_in_a_line(program: Path) -> None:
    done = subprocess.run(
        [program, "1", "connect,sctp,10.0.0.1,80,5"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("load: connect,sctp,10.0.0.1,80,5\nusage: load SECONDS")


def test_what_was_added_since_a_moment() -> None:
    before = Counts(
        job="j", ok=5, failed=0, cut=0, open=2, slow=0, slowest=0.1,
        failures={}, backends={"a": 5},
    )  # fmt: skip
    after = Counts(
        job="j", ok=9, failed=1, cut=1, open=2, slow=1, slowest=0.7,
        failures={"request timeout": 2}, backends={"a": 5, "b": 4},
    )  # fmt: skip
    added = after.since(before)
    assert (added.ok, added.failed, added.cut, added.slow) == (4, 1, 1, 1)
    assert added.backends == {"b": 4}
    assert added.failures == {"request timeout": 2}
