"""The store goes to PostgreSQL and back, and the daemon answers the same on each: seconds and MB/s.

    python -m tests.benchmarks.migrate_store [--messages 5000000] [--searches 1000] [--store FOLDER]

PostgreSQL is one of its own, which waits for the disk.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.history_store import DEVICES, build
from tests.daemon import Daemon, run_command
from tests.postgresql import Server
from tests.store_answers import Questions


@contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    folder.mkdir()
    server = Server(folder)
    server.make("fsync=on", "full_page_writes=on", "shared_buffers=256MB")
    server.start()
    try:
        yield server
    finally:
        server.administration.close()
        server.stop("immediate")


def ask(daemon: Daemon, questions: Questions) -> tuple[dict[str, Any], float]:
    daemon.start()
    try:
        begin = time.perf_counter()
        return questions.answers(daemon), time.perf_counter() - begin
    finally:
        daemon.stop()


def migrate(daemon: Daemon, to: str) -> tuple[float, str]:
    begin = time.perf_counter()
    done = run_command("migrate-store", "--to", to, "--config", daemon.config)
    assert not done.returncode, done.stderr
    said = done.stdout
    return time.perf_counter() - begin, said


def there_and_back(daemon: Daemon, server: Server, questions: Questions) -> list[str]:
    """Lines of what was measured. Raises AssertionError: an answer differs."""
    server.administration.execute("CREATE DATABASE trunkline TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'")
    store = daemon.state / "store.sqlite"
    before, asked = ask(daemon, questions)
    megabytes = store.stat().st_size / 1e6
    lines = [f"SQLite: {megabytes:,.0f} MB, {len(before)} questions in {asked:.1f} s"]
    seconds, said = migrate(daemon, server.url("trunkline"))
    lines += [said.strip(), f"to PostgreSQL: {seconds:.1f} s, {megabytes / seconds:.1f} MB/s"]
    daemon.settings = f'[storage]\nurl = "{server.url("trunkline")}"\n'
    daemon.write_config()
    there, asked = ask(daemon, questions)
    lines.append(f"PostgreSQL: {len(there)} questions in {asked:.1f} s")
    _same(before, there)
    store.rename(store.with_name("store.before"))
    seconds, said = migrate(daemon, str(store))
    lines += [said.strip(), f"back: {seconds:.1f} s, {store.stat().st_size / 1e6 / seconds:.1f} MB/s"]
    daemon.settings = ""
    daemon.write_config()
    back, _ = ask(daemon, questions)
    _same(before, back)
    return lines


def _same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for question, answer in before.items():
        assert after[question] == answer, f"{question}: {answer} before, {after[question]} after"
    assert {status for status, _ in before.values()} == {200}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--searches", type=int, default=1_000)
    parser.add_argument("--store", type=Path, default=None, help="use the folder of a store that is there already")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # the server has another user
    try:
        daemon = build(folder, options.messages) if options.store is None else Daemon(options.store / "state")
        questions = Questions(DEVICES, int(time.time() * 1000) - 600_000, options.searches)
        with running_server(folder / "server") as server:
            for line in there_and_back(daemon, server, questions):
                print(line)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
