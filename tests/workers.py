"""Runs the tests in several processes: `pytest --workers 4`.

The tests are collected once, and the workers are forks of that process: each is ready at once, and shares what all
have imported. Workers that begin as interpreters of their own, as pytest-xdist's do, import the product and collect
7,100 tests in 10 s of processor time each.

A worker runs the tests of a file in one piece, and takes the next file that nobody has begun. It sends its reports to
the first process, which shows and counts them. A test in which a worker ends is a failure, and a new worker goes on
behind it.
"""

import multiprocessing as mp
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any, Never

import pytest

from tests import leaks, opened_stores


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--workers", type=int, default=0, metavar="N", help="run the tests in N processes (0: in this one)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    number = session.config.getoption("workers")
    if not number or session.config.option.collectonly or session.testsfailed:
        return None  # pytest's own
    files = deque(list(items) for _, items in groupby(session.items, key=lambda item: item.path))
    _Workers(session, files).run(number)
    return True


@dataclass(eq=False)
class _Worker:
    process: int
    connection: Connection
    ended: int  # a descriptor that can be read when the process has ended
    tests: deque[pytest.Item] = field(default_factory=deque)  # of its file; the first one runs


class _Workers:
    def __init__(self, session: pytest.Session, files: deque[list[pytest.Item]]) -> None:
        self._session = session
        self._files = files
        self._places = {item.nodeid: number for number, item in enumerate(session.items)}
        self._running: list[_Worker] = []

    def run(self, number: int) -> None:
        try:
            for _ in range(min(number, len(self._files))):
                self._running.append(self._fork())
            while self._running:
                ready = set(wait([one for worker in self._running for one in (worker.connection, worker.ended)]))
                for worker in [one for one in self._running if {one.connection, one.ended} & ready]:
                    self._hear(worker)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)
        finally:
            for worker in self._running:  # each ends its fixtures
                worker.connection.close()  # a test may take the signal for its own
                os.kill(worker.process, signal.SIGINT)
            for worker in self._running:
                os.waitpid(worker.process, 0)

    def _fork(self) -> _Worker:
        ours, theirs = mp.Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            for one in (ours, *(worker.connection for worker in self._running)):
                one.close()
            _work(self._session, theirs)
        theirs.close()
        return _Worker(process, ours, os.pidfd_open(process))

    def _hear(self, worker: _Worker) -> None:
        """Take one thing that the worker has sent, or its end."""
        try:
            said = worker.connection.recv() if worker.connection.poll() else None
        except (EOFError, ConnectionResetError):
            said = None
        if said is None:
            self._ended(worker)
        elif said == "next":
            self._give(worker, self._files.popleft() if self._files else [])
        elif said == "finished":
            worker.tests.popleft()
        else:
            report = self._session.config.hook.pytest_report_from_serializable(config=self._session.config, data=said)
            self._show(worker, report)

    def _give(self, worker: _Worker, tests: list[pytest.Item]) -> None:
        """Without tests the worker ends."""
        worker.tests = deque(tests)
        worker.connection.send([self._places[item.nodeid] for item in tests])

    def _show(self, worker: _Worker, report: Any) -> None:
        # Without it pytest's terminal writes the name of the file before each dot.
        about = {"id": worker.process, "sysplatform": sys.platform, "version_info": sys.version_info}
        report.node = SimpleNamespace(
            gateway=SimpleNamespace(id=worker.process), workerinfo={**about, "executable": sys.executable}
        )
        self._session.config.hook.pytest_runtest_logreport(report=report)
        del report.node

    def _ended(self, worker: _Worker) -> None:
        _, status = os.waitpid(worker.process, 0)
        self._running.remove(worker)
        worker.connection.close()
        os.close(worker.ended)
        if worker.tests:
            test = worker.tests.popleft()
            text = f"the worker ended with status {os.waitstatus_to_exitcode(status)}"
            self._show(worker, pytest.TestReport(test.nodeid, test.location, {}, "failed", text, "call"))
            self._files.appendleft([*worker.tests])
            self._running.append(self._fork())


def _work(session: pytest.Session, connection: Connection) -> Never:
    """Run what the first process gives."""
    status = 1
    try:
        plugins = session.config.pluginmanager
        plugins.unregister(name="terminalreporter")
        plugins.register(_Reports(session.config, connection))
        capture: Any = plugins.getplugin("capturemanager")
        capture.stop_global_capturing()  # into the files of the first process
        capture.start_global_capturing()
        capture.suspend_global_capture()
        leaks.KNOWN.begin_worker()
        opened_stores.OPENED.begin_worker()
        try:
            for item, after in _given(session, connection):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                connection.send("finished")
        finally:
            plugins.getplugin("runner").pytest_sessionfinish(session)
        status = 0
    except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the run is over
    finally:
        os._exit(status)


def _given(session: pytest.Session, connection: Connection) -> Iterator[tuple[pytest.Item, pytest.Item]]:
    """The tests of one file after the other, each with the one after it: what both need stays between them."""
    while True:
        connection.send("next")
        tests = [session.items[number] for number in connection.recv()]
        if not tests:
            return
        # Behind a file's last test, only what serves the whole session stays.
        yield from zip(tests, [*tests[1:], session], strict=True)


class _Reports:
    """Sends each report to the first process."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(data)
