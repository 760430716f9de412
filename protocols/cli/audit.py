"""`trunkline audit`: who changed what, when and from where, and who was refused (reference 28.2)."""

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import msgspec
import trio

from broker.trace.events import AuditEvent
from config.loading import load_settings
from config.settings import Settings
from protocols.cli.daemon_failures import failures_reported
from protocols.cli.failures import CommandError
from protocols.cli.options import config_option
from protocols.control.client import ControlUnavailableError, send_command
from protocols.control.lines import AUDIT_MAX
from protocols.errors import require_store
from storage.engines import engine_of
from storage.records import AuditFilter, AuditRecord

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGO: Final = re.compile(r"([0-9]{1,9})([smhd])")
_NEVER_MS: Final = 2**62


@click.command()
@click.option("--since", metavar="TIME", help="From then on: 90s, 15m, 1h or 7d ago, or as 2026-05-01T12:00 (UTC).")
@click.option("--until", metavar="TIME", help="Before then.")
@click.option(
    "--actor",
    default="",
    help="Of this user, application, device or operator: the id, as it is printed, or a user's e-mail address.",
)
@click.option("--event", "--kind", type=click.Choice([kind.value for kind in AuditEvent]), help="Of this kind.")
@click.option(
    "--object", "object_", default="", help="About this: the id, as it is printed, or a user's e-mail address."
)
@click.option("--outcome", type=click.Choice(["done", "refused", "failed"]))
@click.option("--limit", type=click.IntRange(1, AUDIT_MAX), default=100, show_default=True, help="Number of entries.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object in each line.")
@config_option
def audit(
    since: str | None,
    until: str | None,
    actor: str,
    event: str | None,
    object_: str,
    outcome: str | None,
    limit: int,
    as_json: bool,
    config: Path | None,
) -> None:
    """Print the audit log, oldest entry first.

    Works on a stopped daemon's state and, through its control socket, on a running one.
    """
    now_ms = time.time_ns() // 1_000_000
    wanted = AuditFilter(
        since_ms=0 if since is None else _moment_ms(since, now_ms),
        until_ms=_NEVER_MS if until is None else _moment_ms(until, now_ms),
        limit=limit,
        actor=actor,
        event=event or "",
        object=object_,
        outcome=outcome or "",
    )
    with failures_reported():
        entries = trio.run(_find, load_settings(config), wanted)
    for entry in entries:
        click.echo(msgspec.json.encode(_members(entry)).decode() if as_json else _line(entry))


async def _find(settings: Settings, wanted: AuditFilter) -> list[AuditRecord]:
    try:
        answer = await send_command(settings.state_dir, "audit", msgspec.to_builtins(wanted))
    except ControlUnavailableError:
        return await trio.to_thread.run_sync(_read, settings, wanted)
    return msgspec.convert(answer, list[AuditRecord])


def _read(settings: Settings, wanted: AuditFilter) -> list[AuditRecord]:
    """Read the store of a stopped daemon. Raises StateError when there is none, or when a daemon starts or stops."""
    require_store(settings)
    from protocols.operation.state import open_state  # noqa: PLC0415 - not needed where a running daemon answers
    from storage.audit import AuditStore  # noqa: PLC0415

    with open_state(settings):
        engine = engine_of(settings, upgrades=False)
        engine.migrate()
        connection = engine.open(read_only=True)
        try:
            return AuditStore(connection).find(wanted)
        finally:
            connection.close()


def _moment_ms(text: str, now_ms: int) -> int:
    """A moment in ms since the epoch. Raises CommandError."""
    if (ago := _AGO.fullmatch(text)) is not None:
        return now_ms - int(ago[1]) * _SECONDS[ago[2]] * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(f"{text!r} is no time: expected 90s, 15m, 1h, 7d or as 2026-05-01T12:00") from error
    return int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _members(entry: AuditRecord) -> dict[str, Any]:
    return {
        "at": _time(entry.at_ms),
        "event": entry.event,
        "actor": entry.actor,
        "address": entry.address,
        "object": entry.object,
        "outcome": entry.outcome,
        "details": entry.details,
    }


def _line(entry: AuditRecord) -> str:
    details = "  ".join(f"{name}={_text(value)}" for name, value in entry.details.items())
    who = f"{entry.actor or '-'} from {entry.address or '-'}"
    what = f"{entry.event:<22} {entry.outcome:<8}"
    return f"{_time(entry.at_ms)}  {what} {who}  {entry.object or '-'}  {details}".rstrip()


def _text(value: object) -> str:
    """A value without control characters: what is printed must not control the terminal."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if text.isprintable() else repr(text)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
