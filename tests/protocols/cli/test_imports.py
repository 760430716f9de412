"""A command imports what it needs: who asks for help, or asks a running daemon, does not wait for a server to load."""

import subprocess
import sys
from collections.abc import Sequence

import click
import pytest

from protocols.cli import _FIRST_SENTENCES, main

pytestmark = pytest.mark.slow


#: Each is imported by the daemon, and by nothing that the commands below need.
SERVER = (
    "aiocoap",
    "boto3",
    "broker.services",
    "hypercorn",
    "joserfc",
    "numpy",
    "prometheus_client",
    "quart",
)


#: Takes a moment each, and a command that a running daemon answers needs none of them.
_OF_THE_STORE = ("argon2", "broker.devices.registry", "cryptography", "sqlite3", "storage.database", "storage.records")
SLOW = (*SERVER, *_OF_THE_STORE, "structlog")


def imported_by(*groups: Sequence[str], names: Sequence[str] = SERVER) -> list[set[str]]:
    """Which of the names a new interpreter has imported when it has shown the help of each group of commands."""
    program = (
        "import sys\nfrom protocols.cli import main\n"
        f"for group in {groups!r}:\n"
        "    for command in group: main([*command.split(), '--help'], standalone_mode=False)\n"
        f"    print(*(name for name in {names!r} if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [set(line.split()) for line in done.stderr.split("\n")[:-1]]


def test_the_help_and_the_clients_of_a_daemon_import_no_server() -> None:
    clients = (
        "tail",
        "edge",
        "forward",
        "history",
        "export",
        "import",
        "receive",
        "mcp",
        "simulate",
        "statistics",
        "type",
        "plans",
        "payments",
        "rule",
        "found",
    )
    operators = ("user", "device", "app", "token", "provision", "retention")
    (by_these,) = imported_by(("", *clients, *operators))
    assert by_these == set()


def test_commands_that_a_running_daemon_answers_load_neither_its_store_nor_its_log() -> None:
    lists = ("device list", "user list", "app list", "limits", "type list", "plans", "payments", "statistics")
    others = ("device show", "user disable", "token new", "retention confirm", "rule explain")
    (by_these,) = imported_by((*lists, *others), names=SLOW)
    assert by_these == set()
    (by_audit,) = imported_by(("audit",), names=SLOW)
    assert by_audit == {"storage.records"}


def test_the_daemon_loads_few_modules_and_looks_for_no_garbage_among_them() -> None:
    """It is ready after 1.5 s of processor time; numpy, which only the learner needs, would take a tenth of that.

    And with SQLite it needs no library of PostgreSQL.
    """
    program = (
        "import gc, sys\nfrom protocols.cli import main\n"
        "gc.collect()\nbefore = gc.get_stats()[0]['collections']\nmain(['serve', '--help'], standalone_mode=False)\n"
        "print(len(sys.modules), gc.get_stats()[0]['collections'] - before, len(gc.get_objects()), file=sys.stderr)\n"
        f"print(*(name for name in {(*SERVER, 'psycopg')!r} if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules, collections, looked_at_later, *of_a_server = done.stderr.split()
    assert int(modules) <= 2_110
    assert int(collections) == 0
    assert int(looked_at_later) < 1_000  # of 200,000
    assert set(of_a_server) == {*SERVER} - {"boto3", "numpy"}


def test_the_help_has_the_first_sentence_of_each_command() -> None:
    context = click.Context(main)
    said = {}
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        said[name] = command.get_short_help_str(200)
    assert said == _FIRST_SENTENCES


def test_the_help_is_in_the_order_of_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"], standalone_mode=False)
    shown = capsys.readouterr().out.partition("Commands:\n")[2]
    assert [line.split()[0] for line in shown.splitlines()] == list(_FIRST_SENTENCES)
